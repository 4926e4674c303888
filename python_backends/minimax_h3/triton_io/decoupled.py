"""A `StreamingStage` as the `TritonPythonModel` of its folder: a decoupled model."""

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from minimax_h3.core.contracts import ModelSpec
from minimax_h3.core.errors import H3Error
from minimax_h3.stages.base import StageRequest, StreamingStage
from minimax_h3.triton_io.adapter import StageModel
from minimax_h3.triton_io.bls import triton_error, with_kind
from minimax_h3.triton_io.probe import is_probe
from minimax_h3.triton_io.tensors import find_fault, to_triton
from minimax_h3.triton_io.triton_log import printable


class StreamingModel(StageModel):
    """Hands each request to the stage with a place for its answers, and returns at once."""

    def execute(self, requests: Sequence[Any]) -> None:  # type: ignore[override]  # decoupled
        """Open every request; one that is refused does not touch the others."""
        for request in requests:
            if is_probe(request):
                request.get_response_sender().send(
                    flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
                )
                continue
            answers = TritonAnswers(request.get_response_sender(), self._spec, self._log)
            try:
                cast("StreamingStage", self._stage).open(_kept(self._admit(request)), answers)
            except Exception as error:  # noqa: BLE001  # it becomes the answer of one request
                answers.fail(error)

    def finalize(self) -> None:
        """Triton unloads the model."""
        cast("StreamingStage", self._stage).close()
        super().finalize()


class TritonAnswers:
    """The `Answers` of a stage that runs inside Triton."""

    def __init__(self, sender: Any, spec: ModelSpec, log: logging.Logger) -> None:
        self._sender = sender
        self._outputs = {output.name: output for output in spec.outputs}
        self._name = spec.name
        self._log = log
        self._lock = threading.Lock()
        self._ended = False

    def send(self, tensors: Mapping[str, NDArray[np.generic]], *, last: bool = False) -> None:
        """Send one response; a client that has gone takes nothing, which is not an error.

        Raises:
            TypeError: the stage broke its contract; the tensor is named.
        """
        for name, array in tensors.items():
            fault = find_fault(array, self._outputs[name], batched=False)
            if fault:
                raise TypeError(f"{self._name} output {fault}")
        response = pb_utils.InferenceResponse(
            [to_triton(name, array) for name, array in tensors.items()]
        )
        self._send(response, last=last)

    def fail(self, error: Exception) -> None:
        """Send an error, with its kind in front: a stream's error has no code of its own."""
        if isinstance(error, H3Error):
            status, kind, message = error.status, error.kind, str(error)
            self._log.info("%s: %s", kind, message)
        else:
            status, kind = H3Error.status, H3Error.kind
            message = f"{self._name}: unexpected {type(error).__name__}; see the server log"
            self._log.error("unexpected error", exc_info=error)
        text = printable(with_kind(kind, message))
        self._send(pb_utils.InferenceResponse(error=triton_error(text, status)), last=True)

    def is_cancelled(self) -> bool:
        """Whether the client has gone or has cancelled; not asked after the last response.

        Server 2.51 dies of a segmentation fault when it is asked about an answered request.
        """
        with self._lock:
            return not self._ended and bool(self._sender.is_cancelled())

    def _send(self, response: Any, *, last: bool) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = last
            flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0
            self._sender.send(response, flags=flags)


def streaming_model(stage_class: type[StreamingStage]) -> type[StreamingModel]:
    """The `TritonPythonModel` that serves `stage_class`."""
    return type("TritonPythonModel", (StreamingModel,), {"stage_class": stage_class})


def _kept(request: StageRequest) -> StageRequest:
    """The request with tensors of its own: Triton's memory ends when `execute` returns."""
    copies = {name: request.array(name).copy() for name in request.tensors}
    return replace(request, tensors=copies)
