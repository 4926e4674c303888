"""The one exception tree of the product. Each class carries the gRPC status it maps to."""

from types import MappingProxyType
from typing import ClassVar

RETRY_AFTER_S = 5.0  # what a caller is told who may try the same again


class H3Error(Exception):
    """Base of every error that a caller may see.

    Attributes:
        status: gRPC's word for it, in answers and in events.
        kind: machine-readable word for logs, metrics and events.
    """

    status: ClassVar[str] = "INTERNAL"
    kind: ClassVar[str] = "internal"


class InvalidRequestError(H3Error):
    """The request is wrong and stays wrong; names the field, the value and the legal range."""

    status = "INVALID_ARGUMENT"
    kind = "invalid_request"


class NotAvailableError(H3Error):
    """The request is legal but this server cannot serve it (feature, partition or wheel absent)."""

    status = "INVALID_ARGUMENT"
    kind = "not_available"


class CapacityError(H3Error):
    """The server is full; the same request may succeed later."""

    status = "UNAVAILABLE"
    kind = "capacity"


class CancelledError(H3Error):
    """The job was cancelled; the work stopped at the next boundary."""

    status = "CANCELLED"
    kind = "cancelled"


class DeadlineRefusedError(H3Error):
    """The job cannot meet its deadline with the work before it; refused before any work."""

    status = "UNAVAILABLE"
    kind = "deadline_refused"


class DeadlineExceededError(H3Error):
    """The job's deadline passed; the work stopped at the next boundary."""

    status = "CANCELLED"
    kind = "deadline_exceeded"


class WorkerLostError(H3Error):
    """The process that worked on the job died or hung; the same request may succeed now."""

    status = "UNAVAILABLE"
    kind = "worker_lost"


class UnknownResultError(H3Error):
    """A result that this server does not keep: never made, expired, or pushed out by newer ones."""

    status = "NOT_FOUND"
    kind = "unknown_result"


class UnknownSessionError(H3Error):
    """A DiT session id that this server does not hold: ended, dropped, or from before a restart."""

    status = "NOT_FOUND"
    kind = "unknown_session"


class CheckpointError(H3Error):
    """A checkpoint file or tensor is missing, extra or has the wrong shape; each is named."""

    kind = "checkpoint"


class ConfigError(H3Error):
    """A server parameter is unknown, malformed, or excludes another one."""

    kind = "config"


class BackendUnavailableError(H3Error):
    """A backend that was asked for by name cannot run here."""

    kind = "backend_unavailable"


class RemoteStageError(H3Error):
    """A composing model answered with an error that has no kind of its own here."""

    kind = "remote_stage"


_BY_KIND = MappingProxyType({error.kind: error for error in H3Error.__subclasses__()})


def error_of(kind: str, message: str) -> H3Error:
    """The product's error of a kind that another process named; a crash there is `remote_stage`."""
    return _BY_KIND.get(kind, RemoteStageError)(message)
