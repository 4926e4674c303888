"""Files of a request: what stands for one, read once and within the server's own limits."""

import os
import stat
from pathlib import Path

from h3_client.errors import INVALID_ARGUMENT, H3ClientError
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.core.limits import LIMITS, MEDIA_FORMATS, Limit, check
from minimax_h3.core.refusals import reason, refuse, shown

SERVER_FILE = "file:"  # a file that lies at the server, below the operator's media root
FILE_FIELDS = ("keyframes", "references")
# The largest file that may be meant; what kind it is, the server reads from its bytes.
_LARGEST = {
    "keyframes": LIMITS["picture_bytes"],
    "references": max(
        (LIMITS[f"{kind}_bytes"] for kind in ("picture", "video", "sound")),
        key=lambda limit: limit.high,
    ),
}


def encoded_files(name: str, value: object) -> list[bytes]:
    """The elements of `keyframes` or `references` as the server takes them.

    Args:
        name: the field.
        value: one file or a list of them: its bytes, a `Path` to read, or the text `file:NAME` for
            a file at the server. Other text is refused: it might be a path or a URL.

    Raises:
        H3ClientError: no file, a file that cannot be read, or more than the server takes.
    """
    elements = value if isinstance(value, list | tuple) else [value]
    try:
        check(name, len(elements), name)
        files = [_encoded(name, index, one) for index, one in enumerate(elements)]
        check("request_bytes", sum(map(len, files)), name)
    except InvalidRequestError as error:
        raise H3ClientError(INVALID_ARGUMENT, str(error)) from error
    return files


def _encoded(name: str, index: int, element: object) -> bytes:
    subject = f"{name}[{index}]"
    if isinstance(element, bytes):
        return element
    if isinstance(element, str) and element.startswith(SERVER_FILE):
        return element.encode(errors="surrogatepass")  # the server refuses it by name
    if not isinstance(element, Path):
        legal = f"bytes, a Path, or the text {SERVER_FILE}NAME of a file at the server"
        raise refuse(subject, element, legal)
    try:
        fault = _fault(element.stat(), _LARGEST[name])
        encoded = b"" if fault else element.read_bytes()
    except OSError as error:
        fault = f"cannot be read ({reason(error)})"
    if fault:
        path, legal = shown(str(element)), f"{_LARGEST[name].legal} of {', '.join(MEDIA_FORMATS)}"
        raise InvalidRequestError(f"{subject}: {path} {fault}; legal: {legal}")
    return encoded


def _fault(facts: os.stat_result, limit: Limit) -> str:
    """What is wrong with a file before it is read, or empty."""
    if not stat.S_ISREG(facts.st_mode):
        return "is a folder" if stat.S_ISDIR(facts.st_mode) else "is no regular file"
    if not facts.st_size:
        return "is empty"
    return "" if limit.allows(facts.st_size) else f"has {facts.st_size:,} bytes"
