"""Files of a request: what stands for one, read once and within the server's own limits."""

from pathlib import Path

from h3_client.errors import INVALID_ARGUMENT, H3ClientError
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.core.limits import LIMITS, check

SERVER_FILE = "file:"  # a file that lies at the server, below the operator's media root
FILE_FIELDS = ("keyframes", "references")
_LARGEST = max(("picture_bytes", "video_bytes", "sound_bytes"), key=lambda name: LIMITS[name].high)


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
        files = [_encoded(f"{name}[{index}]", one) for index, one in enumerate(elements)]
        check("request_bytes", sum(map(len, files)), name)
    except InvalidRequestError as error:
        raise H3ClientError(INVALID_ARGUMENT, str(error)) from error
    return files


def _encoded(subject: str, element: object) -> bytes:
    if isinstance(element, bytes):
        return element
    if isinstance(element, str) and element.startswith(SERVER_FILE):
        return element.encode()
    if not isinstance(element, Path):
        raise H3ClientError(
            INVALID_ARGUMENT,
            f"{subject}: {repr(element)[:200]} is not legal; legal: bytes, a Path, or the text "
            f"{SERVER_FILE}NAME of a file at the server",
        )
    try:
        if not element.is_file():
            raise H3ClientError(INVALID_ARGUMENT, f"{subject}: there is no file {element}")
        check(_LARGEST, element.stat().st_size, f"{subject} ({element})")
        return element.read_bytes()
    except OSError as error:
        raise H3ClientError(INVALID_ARGUMENT, f"{subject}: {error}") from error
