"""Triton tensors <-> numpy, checked against `TensorSpec`.

Opaque tensors are handed on as they came: a BF16 tensor cannot be read by numpy, and reading costs
a copy.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from minimax_h3.core.contracts import ModelSpec, TensorSpec
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.stages.base import Tensor, Tensors

NUMPY_TYPES = MappingProxyType(
    {
        "STRING": np.dtype(object),
        "BOOL": np.dtype(bool),
        "UINT8": np.dtype(np.uint8),
        "INT32": np.dtype(np.int32),
        "INT64": np.dtype(np.int64),
        "FP32": np.dtype(np.float32),
    }
)


def read_inputs(request: Any, spec: ModelSpec) -> Tensors:
    """The inputs of one request by name; optional ones that are absent are left out.

    Raises:
        InvalidRequestError: an input is missing or has the wrong shape or type; it is named.
    """
    tensors: dict[str, Tensor] = {}
    for tensor_spec in spec.inputs:
        tensor = pb_utils.get_input_tensor_by_name(request, tensor_spec.name)
        if tensor is None:
            if tensor_spec.optional:
                continue
            raise InvalidRequestError(f"{tensor_spec.name}: missing; {spec.name} requires it")
        if tensor_spec.opaque:
            tensors[tensor_spec.name] = tensor
            continue
        array = tensor.as_numpy()
        fault = find_fault(array, tensor_spec, batched=spec.max_batch_size > 0)
        if fault:
            raise InvalidRequestError(fault)
        tensors[tensor_spec.name] = array
    return tensors


def write_outputs(answer: Mapping[str, NDArray[np.generic]], spec: ModelSpec) -> list[Any]:
    """Triton tensors of a stage's answer.

    A model that takes one request at a time fills every output; a batched one may leave some out.

    Raises:
        TypeError: the stage broke its contract; the tensor is named.
    """
    by_name = {output.name: output for output in spec.outputs}
    unknown = set(answer) - set(by_name)
    missing = set(by_name) - set(answer) if not spec.max_batch_size else set()
    if unknown or missing:
        raise TypeError(
            f"{spec.name}: undeclared outputs {sorted(unknown)}, missing outputs {sorted(missing)}"
        )
    for name, array in answer.items():
        fault = find_fault(array, by_name[name], batched=spec.max_batch_size > 0)
        if fault:
            raise TypeError(f"{spec.name} output {fault}")
    return [to_triton(name, array) for name, array in answer.items()]


def to_triton(name: str, tensor: Tensor) -> Any:
    """One Triton tensor called `name`; an opaque one is renamed without being read."""
    if isinstance(tensor, np.ndarray):
        return pb_utils.Tensor(name, np.ascontiguousarray(tensor))
    opaque: Any = tensor
    return opaque if opaque.name() == name else pb_utils.Tensor.from_dlpack(name, opaque)


def find_fault(array: NDArray[np.generic], spec: TensorSpec, *, batched: bool) -> str:
    """What is wrong with a tensor, naming it, its value and what is legal; else empty."""
    legal_dims = (1, *spec.dims) if batched else spec.dims
    if array.dtype != NUMPY_TYPES[spec.dtype]:
        found = f"type {array.dtype}"
    elif array.ndim != len(legal_dims) or any(
        dim not in (-1, size) for dim, size in zip(legal_dims, array.shape, strict=True)
    ):
        found = f"shape {_show(array.shape)}"
    else:
        return ""
    return f"{spec.name}: {found} is not legal; legal: {spec.dtype} {_show(legal_dims)}"


def _show(dims: tuple[int, ...]) -> str:
    return "[" + ", ".join("any" if dim == -1 else str(dim) for dim in dims) + "]"
