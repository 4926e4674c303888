"""Elements of KEYFRAMES and REFERENCES -> encoded bytes.

An element is a file's bytes. Only where the operator set a media root may it be the text
`file:NAME` instead, which names a regular file below that root; no link is followed on the way.
"""

import errno
import os
import stat
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from minimax_h3.core.errors import ConfigError, InvalidRequestError, NotAvailableError
from minimax_h3.core.limits import LIMITS
from minimax_h3.core.refusals import MAX_SHOWN_CHARS, refuse, shown
from minimax_h3.core.texts import is_plain

FILE_PREFIX = b"file:"  # no media format begins with it
_LARGEST = int(max(LIMITS[f"{kind}_bytes"].high for kind in ("picture", "video", "sound")))
_SHOWN_BYTES = 4 * MAX_SHOWN_CHARS
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a named pipe must not block


@dataclass(frozen=True, slots=True)
class MediaFiles:
    """Where `file:NAME` elements may come from.

    Attributes:
        root: absolute folder, or empty: then such elements are refused.

    Raises:
        ConfigError: the folder is not there.
    """

    root: str

    def __post_init__(self) -> None:
        """Refuse a folder that is not there before any request names a file of it."""
        if self.root and not Path(self.root).is_dir():
            raise ConfigError(
                f"media_root: {self.root!r} is not legal; legal: an existing folder, or empty"
            )

    def read(self, element: bytes, subject: str) -> bytes:
        """The encoded bytes of an element.

        Args:
            element: bytes of a file, or `file:NAME`.
            subject: the element as a client counts it, such as `references[1]`.

        Raises:
            NotAvailableError: `file:NAME` without a media root.
            InvalidRequestError: the name leaves the root, or is no regular file of legal size.
        """
        if not element.startswith(FILE_PREFIX):
            return element
        if not self.root:
            named = shown(element[:_SHOWN_BYTES].decode(errors="replace"))
            raise NotAvailableError(
                f"{subject}: {named} is not legal, file: names are not served here; legal: the "
                "bytes of the file (an operator allows names by media_root)"
            )
        name = _checked_name(element[len(FILE_PREFIX) :], subject)
        try:
            return _read_below(self.root, name.split("/"))
        except OSError as error:
            raise InvalidRequestError(
                f"{subject}: {shown(f'file:{name}')} {_fault(error)}; legal: a regular file below "
                "the media root, reached without links"
            ) from error


def _checked_name(raw: bytes, subject: str) -> str:
    try:
        name = raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"{subject}: file: name with byte {raw[error.start]:#04x} at {error.start} is not "
            "legal; legal: UTF-8"
        ) from error
    if not is_plain(name) or any(part in ("", ".", "..") for part in name.split("/")):
        legal = "a relative path without empty, . or .. parts and control characters"
        raise refuse(subject, f"file:{name}", legal)
    return name


def _fault(error: OSError) -> str:
    """What is wrong with a name; no link was followed, so that it tells only of the root."""
    match error.errno:
        case None:
            return str(error)
        case errno.ENOENT | errno.ENAMETOOLONG:
            return "does not exist below the media root"
        case errno.ELOOP | errno.ENOTDIR:
            return "goes through a link or a file that is no folder"
        case errno.EISDIR:
            return "is a folder"
    return "cannot be opened"


def _read_below(root: str, parts: list[str]) -> bytes:
    """Open part after part from the root's descriptor, so that no race can swap a link in.

    Raises:
        OSError: a part is absent or a link, or the last one is no regular file of legal size.
    """
    with ExitStack() as opened:
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        opened.callback(os.close, folder)
        for part in parts[:-1]:
            folder = os.open(part, _FOLDER_FLAGS, dir_fd=folder)
            opened.callback(os.close, folder)
        descriptor = os.open(parts[-1], _FILE_FLAGS, dir_fd=folder)
        with os.fdopen(descriptor, "rb") as file:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode):
                raise OSError("is no regular file")
            # A file may grow meanwhile, and one above the limit is not read.
            encoded = file.read(_LARGEST + 1) if facts.st_size <= _LARGEST else b""
            if max(len(encoded), facts.st_size) > _LARGEST:
                raise OSError(f"has more than {_LARGEST:,} bytes, the largest of any file")
            return encoded
