"""How a refusal reads: the field or file, the value that was found, what is legal.

Values come from clients, so they are shown as a client wrote them, on one line and cut off.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from minimax_h3.core.errors import InvalidRequestError

MAX_SHOWN_CHARS = 100
_MAX_SHOWN_INTEGER = 10**40
_MAX_WHOLE_FLOAT = 1e15
# A library that read from memory names the object and its address, or FFmpeg's word for no file.
_OBJECT = re.compile(r"[:\s]*'?<[^<>]*>'?")


def refuse(subject: str, value: object, legal: str) -> InvalidRequestError:
    """The error for a wrong value.

    Args:
        subject: the field, or the file as a client counts it.
        value: what was given; see `shown`.
        legal: the legal values in words.
    """
    return InvalidRequestError(f"{subject}: {shown(value)} is not legal; legal: {legal}")


def shown(value: object) -> str:
    """A value as a client wrote it, about `MAX_SHOWN_CHARS` characters long at most.

    Text is quoted with everything escaped that cannot be printed, JSON's words stand for Python's,
    files are counted in bytes, and of anything else only the type is told.
    """
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return _cut(repr(value[: MAX_SHOWN_CHARS + 1]))
        case bytes():
            return f"{len(value):,} bytes"
        case int():
            small = abs(value) < _MAX_SHOWN_INTEGER
            return str(value) if small else f"a number of {value.bit_length():,} bits"
        case float():
            # 3.9 in FP32 is 3.9000000953674316, which nobody wrote; a whole float shows as one.
            whole = value.is_integer() and abs(value) <= _MAX_WHOLE_FLOAT
            return repr(value) if whole else f"{value:g}"
        case list() | tuple():
            return _listed(value)
        case Mapping():
            return f"an object of {len(value)} entries"
    return f"a {type(value).__name__}"


def shown_name(name: str) -> str:
    """The name of a field that a client made up: as `shown`, without quotes unless it is empty."""
    return shown(name)[1:-1] or shown(name)


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that one was most likely meant to be, or empty.

    Case, hyphens and underscores do not count: `numFrame` is near `num_frames`.
    """
    plain = {re.sub("[-_]", "", other.lower()): other for other in known}
    asked = re.sub("[-_]", "", name[:MAX_SHOWN_CHARS].lower())
    found = difflib.get_close_matches(asked, plain, n=1)
    return plain[found[0]] if found else ""


def reason(error: Exception) -> str:
    """What a library says is wrong with a file, without the object that it read from."""
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return _cut(_OBJECT.sub("", " ".join(said.split())))


def _listed(values: Sequence[object]) -> str:
    return _cut("[" + ", ".join(map(shown, islice(values, MAX_SHOWN_CHARS))) + "]")


def _cut(text: str) -> str:
    """A text of legal length, with its closing mark kept."""
    return text if len(text) <= MAX_SHOWN_CHARS + 2 else f"{text[:MAX_SHOWN_CHARS]}...{text[-1]}"
