"""Blocking calls from one model of the server to another (BLS).

Triton turns the code of every error into INTERNAL on the way back to a calling model. So a call
asks for the kind of an error, by a request parameter, and the called model puts it in front of its
message. Clients never ask for it and never see it.
"""

import json
import re
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from minimax_h3.core.errors import (
    BackendUnavailableError,
    CancelledError,
    CapacityError,
    CheckpointError,
    ConfigError,
    H3Error,
    InvalidRequestError,
    NotAvailableError,
    RemoteStageError,
    UnknownSessionError,
)
from minimax_h3.stages.base import Tensors
from minimax_h3.triton_io.tensors import to_triton

WANTS_KIND = "wants_error_kind"
_STOPPING = "Server not ready"  # Triton's words for every call after the stop signal
_KIND_AND_MESSAGE = re.compile(r"\[(?P<kind>[a-z_]+)\] (?P<message>.*)", re.DOTALL)
_CLASSES = MappingProxyType(
    {
        error.kind: error
        for error in (
            BackendUnavailableError,
            CancelledError,
            CapacityError,
            CheckpointError,
            ConfigError,
            InvalidRequestError,
            NotAvailableError,
            RemoteStageError,
            UnknownSessionError,
        )
    }
)


class BlsCaller:
    """The `ModelCaller` of a stage that runs inside Triton."""

    def __call__(
        self, model: str, inputs: Tensors, outputs: Sequence[str]
    ) -> dict[str, NDArray[np.generic]]:
        """Call `model` and return those of `outputs` that it answered with.

        Raises:
            H3Error: of the class that the called model raised; `RemoteStageError` when it gave no
                kind, because it is gone or Triton refused the call; `CapacityError` when the whole
                server is stopping.
        """
        request = pb_utils.InferenceRequest(
            model_name=model,
            requested_output_names=list(outputs),
            inputs=[to_triton(name, tensor) for name, tensor in inputs.items()],
            parameters={WANTS_KIND: "yes"},
        )
        try:
            response = request.exec()
        except pb_utils.TritonModelException as error:
            raise RemoteStageError(f"{model}: {error}") from error
        if response.has_error():
            raise decode_error(model, response.error().message())
        return {
            tensor.name(): tensor.as_numpy()
            for tensor in response.output_tensors()
            if tensor.name() in outputs
        }


def encode_error(request: Any, kind: str, message: str) -> str:
    """The error text that answers `request`, with the kind in front if the caller asked for it."""
    wanted = WANTS_KIND in json.loads(request.parameters() or "{}")
    return f"[{kind}] {message}" if wanted else message


def decode_error(model: str, text: str) -> H3Error:
    """The product's error for the error text that `model` answered a call with."""
    match = _KIND_AND_MESSAGE.fullmatch(text)
    if match is None and text.endswith(_STOPPING):
        return CapacityError("the server is stopping; retry when it is back")
    if match is None:
        return RemoteStageError(f"{model}: {text}")
    return _CLASSES.get(match["kind"], RemoteStageError)(match["message"])
