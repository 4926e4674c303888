"""Request fields as typed tensors: which field has a tensor of its own, and how it is encoded."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from h3_client.errors import INVALID_ARGUMENT, H3ClientError
from h3_client.media import FILE_FIELDS, encoded_files
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.core.fields import FIELDS, checked_text
from minimax_h3.core.refusals import reason, refuse, shown, shown_name

BYTES, BOOL, INT64, FP32 = "BYTES", "BOOL", "INT64", "FP32"
OPTIONS = "OPTIONS"

# Field -> tensor data type; the tensor is called like the field, in capitals, and has shape [1],
# or as many elements as a list field was given.
TENSOR_FIELDS = MappingProxyType(
    {
        "prompt": BYTES,
        "task": BYTES,
        "width": INT64,
        "height": INT64,
        "aspect_ratio": BYTES,
        "duration": FP32,
        "num_frames": INT64,
        "num_inference_steps": INT64,
        "seed": INT64,
        "num_outputs": INT64,
        "fps": FP32,
        "keyframes": BYTES,
        "frame_indices": INT64,
        "references": BYTES,
        "start_time_seconds": FP32,
        "audio_mode": BYTES,
        "return_frames": BOOL,
    }
)
LIST_FIELDS = frozenset({*FILE_FIELDS, "frame_indices", "start_time_seconds"})
_LARGEST_INTEGER = 2**63 - 1
_MAX_OPTIONS_SHOWN = 200  # characters


@dataclass(frozen=True, slots=True)
class InputTensor:
    """One tensor of a request: name, Triton data type and values, ready for either protocol."""

    name: str
    datatype: str
    values: NDArray[np.generic]


def text_input(name: str, text: str) -> InputTensor:
    """A text as a BYTES tensor of shape [1].

    Raises:
        H3ClientError: the text holds a lone surrogate, which UTF-8 cannot carry.
    """
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        refusal = refuse(name.lower(), text, "text that is valid Unicode")
        raise H3ClientError(INVALID_ARGUMENT, str(refusal)) from error
    return InputTensor(name, BYTES, np.array([encoded], dtype=np.object_))


def encode_request(fields: Mapping[str, object]) -> list[InputTensor]:
    """Turn request fields into the ensemble's input tensors.

    Only what a tensor cannot carry and texts with control characters are refused here; every rule
    of meaning is the server's.

    Args:
        fields: values by field name. A field that is None is left out. A field without a tensor
            of its own goes into the OPTIONS tensor, one JSON object.

    Raises:
        H3ClientError: a value does not fit its tensor, is not JSON, or is a text with control
            characters; names the field.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    for name, value in given.items():
        if isinstance(value, str) and name in FIELDS and FIELDS[name].kind is str:
            _check_text(name, value)
    tensors = [_tensor(name, given.pop(name)) for name in TENSOR_FIELDS if name in given]
    if given:
        tensors.append(text_input(OPTIONS, _options_json(given)))
    return tensors


def _check_text(name: str, text: str) -> None:
    try:
        checked_text(name, text)
    except InvalidRequestError as error:
        raise H3ClientError(INVALID_ARGUMENT, str(error)) from error


def _options_json(options: Mapping[str, object]) -> str:
    try:
        return json.dumps(options, allow_nan=False)
    except (TypeError, ValueError) as error:
        names = ", ".join(f"{shown_name(name)} {shown(value)}" for name, value in options.items())
        message = (
            f"options: {names[:_MAX_OPTIONS_SHOWN]} is not JSON ({reason(error)}); legal: JSON"
        )
        raise H3ClientError(INVALID_ARGUMENT, message) from error


def _tensor(name: str, value: object) -> InputTensor:
    if name in FILE_FIELDS:
        values = np.empty(len(files := encoded_files(name, value)), dtype=np.object_)
        values[:] = files
        return InputTensor(name.upper(), BYTES, values)
    if name in LIST_FIELDS and isinstance(value, list | tuple):
        elements = [_single(name, element) for element in value] or [_single(name, value)]
        joined = np.concatenate([element.values for element in elements])
        return InputTensor(name.upper(), TENSOR_FIELDS[name], joined)
    return _single(name, value)


def _single(name: str, value: object) -> InputTensor:
    datatype = TENSOR_FIELDS[name]
    if datatype == BYTES and isinstance(value, str):
        return text_input(name.upper(), value)
    if datatype == BOOL and isinstance(value, bool | np.bool_):
        return InputTensor(name.upper(), BOOL, np.array([value], dtype=np.bool_))
    if datatype == INT64 and _is_whole(value):
        return InputTensor(name.upper(), INT64, np.array([value], dtype=np.int64))
    if datatype == FP32 and _is_single(value):
        return InputTensor(name.upper(), FP32, np.array([value], dtype=np.float32))
    field = FIELDS[name]
    refusal = refuse(name, value, f"{field.legal} ({field.type_name}, as {datatype})")
    raise H3ClientError(INVALID_ARGUMENT, str(refusal))


def _is_whole(value: object) -> bool:
    if type(value) is bool or not isinstance(value, int | np.integer):
        return False
    return -_LARGEST_INTEGER - 1 <= int(value) <= _LARGEST_INTEGER


def _is_single(value: object) -> bool:
    """Whether FP32 can carry a number; NaN and infinities it can, and the server judges them."""
    if type(value) is bool or not isinstance(value, int | float | np.integer | np.floating):
        return False
    if isinstance(value, float | np.floating) and not np.isfinite(value):
        return True
    largest = float(np.finfo(np.float32).max)
    return bool(-largest <= value <= largest)
