"""Request parameters: the few that a request may carry; any other one is refused by name.

Triton hands each parameter that it does not read itself on to the model, in an ensemble to every
step. On `/generate` and `/generate_stream` each JSON key that is no tensor becomes one. None of
them would have an effect, so a misspelt field would change nothing and nobody would know.
"""

from collections.abc import Mapping
from types import MappingProxyType

from minimax_h3.core.contracts import (
    JOB_ID_PARAMETER,
    PROBE_PARAMETER,
    RECEIVED_AT_PARAMETER,
    REQUEST_INPUTS,
    WANTS_KIND_PARAMETER,
    WORKER_TOKEN_PARAMETER,
)
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.core.fields import FIELDS, MEANINGLESS_FIELDS, OTHER_NAMES, RESERVED_FIELDS
from minimax_h3.core.refusals import nearest, shown, shown_name

HEADER_PREFIX = "x-"  # of the headers that `h3 serve` lets Triton forward

# What a client may send. Server 2.51 reads Triton's own six itself and hands them on only from
# `/generate` and `/generate_stream`, where it does not read them.
PARAMETERS: Mapping[str, str] = MappingProxyType(
    {
        "id": "the request id, as a key of `/generate` and `/generate_stream`",
        "sequence_id": "Triton's; without effect here",
        "sequence_start": "Triton's; without effect here",
        "sequence_end": "Triton's; without effect here",
        "timeout": "Triton's; without effect here, the field `deadline_s` has one",
        "binary_data_output": "Triton's, over HTTP: outputs as bytes behind the JSON",
        "priority": "Triton's, refused as a key of `/generate`; the field `priority` has an effect",
        f"{HEADER_PREFIX}*": "a header that Triton forwards; without effect here",
        PROBE_PARAMETER: "only whether the model answers; nothing is made",
    }
)
# What the models of one server send each other; legal only beside the token of this start.
BETWEEN_MODELS = frozenset(
    {WORKER_TOKEN_PARAMETER, WANTS_KIND_PARAMETER, JOB_ID_PARAMETER, RECEIVED_AT_PARAMETER}
)
_TENSORS = frozenset(spec.name for spec in REQUEST_INPUTS)
_KNOWN_FIELDS = (*FIELDS, *MEANINGLESS_FIELDS, *RESERVED_FIELDS, *OTHER_NAMES)


def check_parameters(given: Mapping[str, object], *, trusted: bool) -> None:
    """Refuse a parameter that would have no effect.

    Args:
        given: the parameters that a model sees.
        trusted: the caller is a model of this server or its supervisor.

    Raises:
        InvalidRequestError: names the parameter, its value and the legal ones.
    """
    for name in sorted(given):
        if not _is_legal(name, trusted=trusted):
            raise _refusal(name, given[name])


def _is_legal(name: str, *, trusted: bool) -> bool:
    if name in BETWEEN_MODELS:
        return trusted
    # So is `priority`: where Triton does not read it, somebody meant the field.
    if name.lower() in FIELDS:
        return False
    return name in PARAMETERS or name.lower().startswith(HEADER_PREFIX)


def _refusal(name: str, value: object) -> InvalidRequestError:
    if name in BETWEEN_MODELS:
        # Without the value: it may be the token of another start.
        return InvalidRequestError(f"{name}: not of this server; legal: absent")
    sent = f"sent as a request parameter, {shown(value)}, "
    field = name.lower()
    if field in MEANINGLESS_FIELDS:
        return InvalidRequestError(
            f"{name}: {sent}which has no effect; legal: absent; the model is guidance-distilled"
        )
    if field in FIELDS:
        return InvalidRequestError(f"{name}: {sent}which no field is; legal: {_place(field)}")
    close = nearest(name, (*_KNOWN_FIELDS, *PARAMETERS))
    if close in FIELDS:
        hint = f"nearest: the field {close}, {_place(close)}; "
    else:
        hint = f"nearest: {close}; " if close else ""
    return InvalidRequestError(
        f"{shown_name(name)}: {sent}which is not known; {hint}legal: {', '.join(PARAMETERS)}; "
        "fields are tensors or keys of OPTIONS"
    )


def _place(field: str) -> str:
    """Where a field is sent."""
    return f"the tensor {field.upper()}" if field.upper() in _TENSORS else "a key of OPTIONS"
