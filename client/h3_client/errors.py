"""The one error of this package, and the cleaning of what a server says."""

import re

INVALID_ARGUMENT, CANCELLED, INTERNAL = "INVALID_ARGUMENT", "CANCELLED", "INTERNAL"
NOT_FOUND, UNAVAILABLE = "NOT_FOUND", "UNAVAILABLE"
DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
CONNECTION = "CONNECTION"

# The ensemble puts its own name in front of what a composing model answered, once per nesting.
_ENSEMBLE_PREFIX = re.compile(r"^(?:in ensemble '[^']*', )+")
# An exception that a Python model did not map: Triton wraps it and adds the place in the file.
_BACKEND_PREFIX = re.compile(
    r"^Failed to process the request\(s\) for model (?:instance )?'[^']*', message: (?:\w+: )?"
)
_BACKEND_TRACE = re.compile(r"\n+At:\n(?:.*\n?)*$")
# Triton's words for a model whose processes are being replaced.
_AWAY = re.compile(r"has no available versions|Model '[^']*' is not ready|is not healthy")
RETRY = "the server is giving a model new processes; retry after 5 s"


class H3ClientError(Exception):
    """A request that did not succeed; its text is the server's message.

    Attributes:
        status: gRPC's word for it, the same over HTTP: `INVALID_ARGUMENT`, `NOT_FOUND`,
            `UNAVAILABLE` (the server is full, try later), `CANCELLED`, `INTERNAL`,
            `DEADLINE_EXCEEDED` (the caller's own limit); or `CONNECTION`: no server answered.
        message: what was wrong, without the server's own wrapping.
        kind: the server's own word for it, where a stream carried one; else empty.
    """

    def __init__(self, status: str, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind


def server_error(status: str, message: str) -> H3ClientError:
    """The error of a server's answer; a model that is away for a moment is UNAVAILABLE.

    Triton says NOT_FOUND or INTERNAL then, which a caller takes for final.
    """
    text = clean_message(message)
    if status in (NOT_FOUND, INTERNAL) and _AWAY.search(text):
        return H3ClientError(UNAVAILABLE, f"{text}; {RETRY}")
    return H3ClientError(status, text)


def clean_message(message: str) -> str:
    """Take the ensemble's and the Python backend's wrapping off a server's error text."""
    text = _BACKEND_PREFIX.sub("", _ENSEMBLE_PREFIX.sub("", message.strip()))
    return _BACKEND_TRACE.sub("", text).strip()
