"""Blocking calls from one model of the server to another (BLS).

Triton turns the code of every error into INTERNAL on the way back to a calling model. So a call
asks for the kind of an error, by a request parameter, and the called model puts it in front of its
message. Clients never ask for it and never see it.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from minimax_h3.core.contracts import WANTS_KIND_PARAMETER, WORKER_TOKEN_PARAMETER
from minimax_h3.core.errors import (
    RETRY_AFTER_S,
    CapacityError,
    H3Error,
    RemoteStageError,
    WorkerLostError,
    error_of,
)
from minimax_h3.stages.base import NO_PARAMETERS, Tensors
from minimax_h3.triton_io.tensors import to_triton

_DEAD = "is not healthy"  # how Triton speaks of a process that died
# And of a model between its old process and its new one.
_AWAY = re.compile(r"has no available versions|Model '[^']*' is not ready")
_STOPPING = "Server not ready"  # Triton's words for every call after the stop signal
_TRITON_WORDS = {"INVALID_ARGUMENT": "INVALID_ARG"}  # where the backend's word is not gRPC's
# An ensemble puts its own name in front of what its step answered.
_KIND_AND_MESSAGE = re.compile(
    r"(?:in ensemble '[^']*', )*\[(?P<kind>[a-z_]+)\] (?P<message>.*)", re.DOTALL
)


class BlsCaller:
    """The `ModelCaller` of a stage that runs inside Triton.

    Args:
        token: the one of this start.
        traced: whether the server keeps traces.
    """

    def __init__(self, token: str, *, traced: bool = False) -> None:
        self._traced = traced
        self._trace: Any = None
        self._parameters = {WANTS_KIND_PARAMETER: "yes", WORKER_TOKEN_PARAMETER: token}

    @contextmanager
    def within(self, request: Any) -> Iterator[None]:
        """Calls made meanwhile belong to the trace of `request`, if traces are kept.

        For a model that serves one request at a time and is not decoupled: in a decoupled one a
        trace ends server 2.51.
        """
        self._trace = request.trace() if self._traced else None
        try:
            yield
        finally:
            self._trace = None

    def __call__(
        self,
        model: str,
        inputs: Tensors,
        outputs: Sequence[str],
        *,
        request_id: str = "",
        parameters: Mapping[str, str] = NO_PARAMETERS,
    ) -> dict[str, NDArray[np.generic]]:
        """Call `model` and return those of `outputs` that it answered with.

        Raises:
            H3Error: of the class that the called model raised; `WorkerLostError` when its process
                died; `RemoteStageError` when Triton refused the call without a kind;
                `CapacityError` when the model or the whole server is away for the moment.
        """
        request = pb_utils.InferenceRequest(
            model_name=model,
            requested_output_names=list(outputs),
            inputs=[to_triton(name, tensor) for name, tensor in inputs.items()],
            request_id=request_id,
            parameters={**self._parameters, **parameters},
            **({"trace": self._trace} if self._trace is not None else {}),
        )
        try:
            response = request.exec()
        except pb_utils.TritonModelException as error:
            raise decode_error(model, str(error)) from error
        if response.has_error():
            raise decode_error(model, response.error().message())
        return {
            tensor.name(): tensor.as_numpy()
            for tensor in response.output_tensors()
            if tensor.name() in outputs
        }


def encode_error(request: Any, kind: str, message: str) -> str:
    """The error text that answers `request`, with the kind in front if the caller asked for it."""
    wanted = WANTS_KIND_PARAMETER in parameters_of(request)
    return with_kind(kind, message) if wanted else message


def with_kind(kind: str, message: str) -> str:
    """An error text that `decode_error` and the client can take apart."""
    return f"[{kind}] {message}"


def triton_error(text: str, status: str) -> Any:
    """The Python backend's form of an error with one of gRPC's statuses."""
    code = getattr(pb_utils.TritonError, _TRITON_WORDS.get(status, status))
    return pb_utils.TritonError(text, code)


def parameters_of(request: Any) -> dict[str, object]:
    """The parameters of a Triton request, forwarded headers among them."""
    given: dict[str, object] = json.loads(request.parameters() or "{}")
    return given


def decode_error(model: str, text: str) -> H3Error:
    """The product's error for the error text that `model` answered a call with."""
    match = _KIND_AND_MESSAGE.fullmatch(text)
    if match is None and text.endswith(_STOPPING):
        return CapacityError("the server is stopping; retry when it is back")
    if match is None and _AWAY.search(text):
        return CapacityError(f"{model} is being started again; retry after {RETRY_AFTER_S:g} s")
    if match is None and _DEAD in text:
        return WorkerLostError(f"the process of {model} died or hung; retry ({text})")
    if match is None:
        return RemoteStageError(f"{model}: {text}")
    return error_of(match["kind"], match["message"])
