"""Fields of an operation of `jobs`, read strictly."""

from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.core.refusals import refuse
from minimax_h3.core.texts import is_plain

MAX_ID_CHARS = 128
NAME_LEGAL = f"a text of 1..{MAX_ID_CHARS} characters, no control characters"
MAX_MESSAGE_CHARS = 2000

Operation = dict[str, object]


def word(operation: Operation, name: str, default: str | None = None) -> str:
    """A name of 1..128 characters; an empty one is legal when there is a default."""
    value = operation.get(name, default)
    if isinstance(value, str) and not value and default is not None:
        return value
    return checked_name(name, value)


def checked_name(subject: str, value: object) -> str:
    """A job id, a request id or another name.

    Args:
        subject: what it is, for the refusal.
        value: as it was sent.

    Raises:
        InvalidRequestError: no text, empty, too long, or with characters that no name has.
    """
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_ID_CHARS or not is_plain(value):
        raise refuse(subject, value, NAME_LEGAL)
    return value


def choice(operation: Operation, name: str, legal: tuple[str, ...], default: str) -> str:
    """One of a few words."""
    value = word(operation, name, default)
    if value not in legal:
        raise InvalidRequestError(
            f"{name}: {value[:50]!r} is not legal; legal: one of {', '.join(legal)}"
        )
    return value


def message(operation: Operation, name: str) -> str:
    """A text, cut to a bounded length."""
    return str(operation.get(name, ""))[:MAX_MESSAGE_CHARS]


def count(operation: Operation, name: str) -> int:
    """A whole number from 0, which is also the default."""
    value = operation.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidRequestError(f"{name}: {value!r} is not legal; legal: a whole number from 0")
    return value


def seconds(operation: Operation, name: str) -> float | None:
    """Seconds from 0, or None when absent."""
    value = operation.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e9:
        raise InvalidRequestError(f"{name}: {value!r} is not legal; legal: seconds from 0")
    return float(value)


def flag(operation: Operation, name: str) -> bool:
    """True or false; false when absent."""
    value = operation.get(name, False)
    if not isinstance(value, bool):
        raise InvalidRequestError(f"{name}: {value!r} is not legal; legal: true or false")
    return value


def entries(operation: Operation, name: str) -> list[Operation]:
    """A list of objects; empty when absent."""
    value = operation.get(name, [])
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise InvalidRequestError(f"{name}: not legal; legal: a list of objects")
    return value


def words(operation: Operation, name: str) -> list[str]:
    """A list of strings; empty when absent."""
    value = operation.get(name, [])
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise InvalidRequestError(f"{name}: not legal; legal: a list of strings")
    return value


def numbers(operation: Operation, name: str) -> list[int]:
    """A list of whole numbers, empty when it is absent."""
    value = operation.get(name, [])
    if not isinstance(value, list) or not all(type(entry) is int for entry in value):
        raise InvalidRequestError(f"{name}: not legal; legal: a list of whole numbers")
    return value
