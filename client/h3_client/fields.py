"""Request fields as typed tensors: which field has a tensor of its own, and how it is encoded."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h3_client.errors import INVALID_ARGUMENT, H3ClientError
from h3_client.media import FILE_FIELDS, encoded_files

BYTES, BOOL, INT32, INT64, FP32 = "BYTES", "BOOL", "INT32", "INT64", "FP32"
OPTIONS = "OPTIONS"

# Field -> tensor data type; the tensor is called like the field, in capitals, and has shape [1],
# or as many elements as a list field was given.
TENSOR_FIELDS = MappingProxyType(
    {
        "prompt": BYTES,
        "task": BYTES,
        "width": INT32,
        "height": INT32,
        "aspect_ratio": BYTES,
        "duration": FP32,
        "num_frames": INT32,
        "num_inference_steps": INT32,
        "seed": INT64,
        "num_outputs": INT32,
        "fps": FP32,
        "keyframes": BYTES,
        "frame_indices": INT32,
        "references": BYTES,
        "start_time_seconds": FP32,
        "audio_mode": BYTES,
        "return_frames": BOOL,
    }
)
LIST_FIELDS = frozenset({*FILE_FIELDS, "frame_indices", "start_time_seconds"})
_INT_TYPES: Mapping[str, type[np.signedinteger[Any]]] = MappingProxyType(
    {INT32: np.int32, INT64: np.int64}
)


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
        reason = f"{name.lower()}: not valid Unicode ({error.reason})"
        raise H3ClientError(INVALID_ARGUMENT, reason) from error
    return InputTensor(name, BYTES, np.array([encoded], dtype=np.object_))


def encode_request(fields: Mapping[str, object]) -> list[InputTensor]:
    """Turn request fields into the ensemble's input tensors.

    Only what a tensor cannot carry is refused here; every rule of meaning is the server's.

    Args:
        fields: values by field name. A field that is None is left out. A field without a tensor
            of its own goes into the OPTIONS tensor, one JSON object.

    Raises:
        H3ClientError: a value does not fit its tensor, or is not JSON; names the field.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    tensors = [_tensor(name, given.pop(name)) for name in TENSOR_FIELDS if name in given]
    if given:
        tensors.append(text_input(OPTIONS, _options_json(given)))
    return tensors


def _options_json(options: Mapping[str, object]) -> str:
    try:
        return json.dumps(options, allow_nan=False)
    except (TypeError, ValueError) as error:
        names = ", ".join(options)
        raise H3ClientError(INVALID_ARGUMENT, f"options ({names}): not JSON: {error}") from error


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
    if datatype in _INT_TYPES and _is_whole(value, _INT_TYPES[datatype]):
        return InputTensor(name.upper(), datatype, np.array([value], dtype=_INT_TYPES[datatype]))
    if datatype == FP32 and _is_single(value):
        return InputTensor(name.upper(), FP32, np.array([value], dtype=np.float32))
    legal = {BYTES: "text", BOOL: "true or false", FP32: "a number that fits FP32"}.get(
        datatype, f"a whole number that fits {datatype}"
    )
    raise H3ClientError(
        INVALID_ARGUMENT, f"{name}: {repr(value)[:200]} is not legal; legal: {legal}"
    )


def _is_whole(value: object, dtype: "type[np.signedinteger[Any]]") -> bool:
    if type(value) is bool or not isinstance(value, int | np.integer):
        return False
    limits = np.iinfo(dtype)
    return limits.min <= int(value) <= limits.max


def _is_single(value: object) -> bool:
    """Whether FP32 can carry a number; NaN and infinities it can, and the server judges them."""
    if type(value) is bool or not isinstance(value, int | float | np.integer | np.floating):
        return False
    if isinstance(value, float | np.floating) and not np.isfinite(value):
        return True
    largest = float(np.finfo(np.float32).max)
    return bool(-largest <= value <= largest)
