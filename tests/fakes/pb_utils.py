"""The one fake of the Python backend's `triton_python_backend_utils`.

It behaves as server 2.51 does where that matters: `as_numpy` copies, a BLS error loses its code,
parameters arrive as JSON text, a tensor is renamed by `from_dlpack` without being read. `install`
puts it where models import it from; `serve_calls_with` says who answers BLS calls.
"""

import enum
import json
import sys
from collections.abc import Callable, Sequence

import numpy as np

NAME = "triton_python_backend_utils"
TYPES = {
    np.dtype(object): "BYTES",
    np.dtype(bool): "BOOL",
    np.dtype(np.uint8): "UINT8",
    np.dtype(np.int32): "INT32",
    np.dtype(np.int64): "INT64",
    np.dtype(np.float32): "FP32",
}


class ErrorCode(enum.Enum):
    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


class TritonError:
    UNKNOWN = ErrorCode.UNKNOWN
    INTERNAL = ErrorCode.INTERNAL
    NOT_FOUND = ErrorCode.NOT_FOUND
    INVALID_ARG = ErrorCode.INVALID_ARG
    UNAVAILABLE = ErrorCode.UNAVAILABLE
    UNSUPPORTED = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = ErrorCode.ALREADY_EXISTS
    CANCELLED = ErrorCode.CANCELLED

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        assert isinstance(message, str)
        self._message, self._code = message, code

    def message(self) -> str:
        return self._message

    def code(self) -> ErrorCode:
        return self._code


class TritonModelException(Exception):  # noqa: N818  # the real name
    pass


class Tensor:
    """`reads` counts how often somebody looked inside, over all names of the tensor."""

    def __init__(self, name: str, array: np.ndarray) -> None:
        assert isinstance(array, np.ndarray), type(array)
        if array.dtype not in TYPES:
            raise TritonModelException(f"NumPy dtype {array.dtype} is not supported.")
        self._name, self._array, self._reads = name, array.copy(), [0]

    @staticmethod
    def from_dlpack(name: str, tensor: "Tensor") -> "Tensor":
        assert tensor._array.dtype != object, "DLPack carries no strings"
        renamed = Tensor.__new__(Tensor)
        renamed._name, renamed._array, renamed._reads = name, tensor._array, tensor._reads
        return renamed

    @property
    def reads(self) -> int:
        return self._reads[0]

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        self._reads[0] += 1
        return self._array.copy()

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def triton_dtype(self) -> str:
        return TYPES[self._array.dtype]


TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


class ResponseSender:
    """Keeps the responses of one request to a decoupled model, as (response, flags)."""

    def __init__(self, cancelled: bool) -> None:
        self.sent: list[tuple[InferenceResponse, int]] = []
        self._cancelled = cancelled

    def send(self, response: "InferenceResponse | None" = None, flags: int = 0) -> None:
        assert not any(earlier for _, earlier in self.sent), "sent after the final response"
        self.sent.append((response, flags))

    def is_cancelled(self) -> bool:
        assert not any(earlier for _, earlier in self.sent), "the real server would crash"
        return self._cancelled


class InferenceRequest:
    def __init__(
        self,
        model_name: str = "",
        requested_output_names: Sequence[str] = (),
        inputs: Sequence[Tensor] = (),
        request_id: str = "",
        parameters: dict | None = None,
        cancelled: bool = False,
    ) -> None:
        self.model_name = model_name
        self._inputs = list(inputs)
        self._outputs = list(requested_output_names)
        self._request_id = request_id
        self._parameters = parameters or {}
        self._cancelled = cancelled
        self._sender = ResponseSender(cancelled)

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def requested_output_names(self) -> list[str]:
        return self._outputs

    def request_id(self) -> str:
        return self._request_id

    def parameters(self) -> str:
        return json.dumps(self._parameters)

    def is_cancelled(self) -> bool:
        return self._cancelled

    def get_response_sender(self) -> "ResponseSender":
        return self._sender

    def exec(self) -> "InferenceResponse":
        response = _answer_call[0](self)
        if not response.has_error():
            return response
        # Server 2.51 forgets the code on the way back to the calling model.
        return InferenceResponse(error=TritonError(response.error().message()))


class InferenceResponse:
    def __init__(
        self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None
    ) -> None:
        self._tensors, self._error = list(output_tensors), error

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error


class Logger:
    """Keeps what was logged, as (level, text)."""

    lines: list[tuple[str, str]] = []  # noqa: RUF012  # one log, as in the server

    @classmethod
    def log_error(cls, text: str) -> None:
        cls.lines.append(("error", text))

    @classmethod
    def log_warn(cls, text: str) -> None:
        cls.lines.append(("warning", text))

    @classmethod
    def log_info(cls, text: str) -> None:
        cls.lines.append(("info", text))

    @classmethod
    def log_verbose(cls, text: str) -> None:
        cls.lines.append(("verbose", text))


class MetricFamily:
    """Keeps every value: `reported[name, labels]` lists them."""

    COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
    reported: dict[tuple[str, tuple[str, ...]], list[float]] = {}  # noqa: RUF012  # one server

    def __init__(self, name: str, description: str, kind: str) -> None:
        assert description
        self.name, self.kind = name, kind

    def Metric(self, labels: dict[str, str], buckets: list[float] | None = None) -> "Metric":  # noqa: N802  # the real name
        assert (buckets is not None) == (self.kind == self.HISTOGRAM)
        return Metric(self.reported.setdefault((self.name, tuple(labels.values())), []))


class Metric:
    def __init__(self, values: list[float]) -> None:
        self.increment = self.set = self.observe = values.append


def get_input_tensor_by_name(request: InferenceRequest, name: str) -> Tensor | None:
    return next((tensor for tensor in request.inputs() if tensor.name() == name), None)


def _nobody(request: InferenceRequest) -> InferenceResponse:
    text = f"Model '{request.model_name}' is not ready."
    return InferenceResponse(error=TritonError(text, TritonError.NOT_FOUND))


_answer_call: list[Callable[[InferenceRequest], InferenceResponse]] = [_nobody]


def serve_calls_with(answer: Callable[[InferenceRequest], InferenceResponse] | None) -> None:
    """Who answers BLS calls from now on; None: nobody, as if no model were loaded."""
    _answer_call[0] = answer or _nobody


def install() -> None:
    """Make `import triton_python_backend_utils` find this module."""
    sys.modules[NAME] = sys.modules[__name__]
