"""What a stage is: plain Python behind one Triton model, with no Triton import.

`triton_io.adapter` turns a `Stage` into the `TritonPythonModel` of its folder: it parses the
parameters, checks tensors against `core.contracts`, maps `H3Error` to Triton codes and reports
failures to `jobs`. A stage only computes.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from minimax_h3.core.config import StageConfig
from minimax_h3.core.errors import H3Error, InvalidRequestError
from minimax_h3.core.metrics import NO_METER, Meter


class OpaqueTensor(Protocol):
    """A tensor that a model forwards unread; only `triton_io` knows what is inside."""


Tensor: TypeAlias = "NDArray[np.generic] | OpaqueTensor"
Tensors: TypeAlias = Mapping[str, Tensor]
NO_PARAMETERS: Mapping[str, str] = MappingProxyType({})


class ModelCaller(Protocol):
    """One blocking call to another model of this server (BLS)."""

    def __call__(
        self,
        model: str,
        inputs: Tensors,
        outputs: Sequence[str],
        *,
        request_id: str = "",
        parameters: Mapping[str, str] = NO_PARAMETERS,
    ) -> dict[str, NDArray[np.generic]]:
        """Call `model` and return the named outputs; an output that the model left out is absent.

        `request_id` and `parameters` are those of the request that the model sees.

        Raises:
            H3Error: the model answered with an error; the class follows the Triton code.
        """
        ...


@dataclass(frozen=True, slots=True)
class StageContext:
    """What a stage gets at load time.

    Attributes:
        config: parsed parameters of its `config.pbtxt`.
        model_folder: the Triton model's own folder.
        call: calls to other models of this server.
        log: logger that ends in the Triton log.
        meter: where metrics go.
    """

    config: StageConfig
    model_folder: Path
    call: ModelCaller
    log: logging.Logger
    meter: Meter = NO_METER

    @property
    def checkpoint_path(self) -> Path:
        """Absolute checkpoint folder."""
        return self.config.checkpoint_path(self.model_folder)


@dataclass(frozen=True, slots=True)
class StageRequest:
    """One request as a stage sees it.

    Attributes:
        tensors: inputs by name; optional ones that the client left out are absent. STRING tensors
            are object arrays of bytes.
        request_id: the client's request id, or empty.
        is_cancelled: asks Triton whether the client has gone; true only for a direct caller.
        parameters: of the request, forwarded headers among them.
        trusted: the caller is a model of this server or its supervisor.
    """

    tensors: Tensors
    request_id: str = ""
    is_cancelled: Callable[[], bool] = lambda: False
    parameters: Mapping[str, object] = field(default_factory=dict)
    trusted: bool = False

    def array(self, name: str) -> NDArray[Any]:
        """A numeric or STRING input as an array; its presence was checked by the adapter."""
        value = self.tensors[name]
        assert isinstance(value, np.ndarray)
        return value

    def text(self, name: str) -> str:
        """The first element of a STRING input, decoded.

        Raises:
            InvalidRequestError: it is not UTF-8.
        """
        return decode_text(name, self.array(name).reshape(-1)[0])


def decode_text(name: str, value: bytes | str) -> str:
    """Text of a STRING tensor.

    Raises:
        InvalidRequestError: it is not UTF-8; names the tensor or field, the byte and its place.
    """
    if isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"{name}: byte {value[error.start]:#04x} at {error.start} is not UTF-8 "
            f"({error.reason}); legal: UTF-8 text"
        ) from error


def text_tensor(value: str | bytes) -> NDArray[np.generic]:
    """A STRING tensor of shape [1]."""
    return np.array([value.encode() if isinstance(value, str) else value], dtype=object)


class Stage(Protocol):
    """A stage that takes one request at a time."""

    name: ClassVar[str]

    @classmethod
    def load(cls, context: StageContext) -> "Stage":
        """Build the stage once, at model load. Raises `H3Error` with the reason when it cannot."""
        ...

    def run(self, request: StageRequest) -> dict[str, NDArray[np.generic]]:
        """Serve one request; every output of its `ModelSpec` is present in the answer."""
        ...


class BatchStage(Protocol):
    """A stage that Triton may hand several requests at once (`max_batch_size > 0`).

    Tensors keep their leading batch dimension of 1.
    """

    name: ClassVar[str]

    @classmethod
    def load(cls, context: StageContext) -> "BatchStage":
        """As `Stage.load`."""
        ...

    def run_batch(
        self, requests: Sequence[StageRequest]
    ) -> list[dict[str, NDArray[np.generic]] | H3Error]:
        """Serve all requests of one `execute()`; one answer or error per request, in order."""
        ...


class Answers(Protocol):
    """Where the answers to one request of a streaming stage go; safe to use from any thread."""

    def send(self, tensors: Mapping[str, NDArray[np.generic]], *, last: bool = False) -> None:
        """Send one response with some of the outputs; nothing follows the last."""
        ...

    def fail(self, error: Exception) -> None:
        """Send an error as the last response."""
        ...

    def is_cancelled(self) -> bool:
        """Whether the client has gone or has cancelled; a round trip to the server."""
        ...


class StreamingStage(Protocol):
    """A stage that answers a request with many responses (a decoupled model)."""

    name: ClassVar[str]

    @classmethod
    def load(cls, context: StageContext) -> "StreamingStage":
        """As `Stage.load`."""
        ...

    def open(self, request: StageRequest, answers: Answers) -> None:
        """Take a request on and return at once; its tensors stay valid afterwards.

        Raises:
            H3Error: the request is refused; nothing was sent.
        """
        ...

    def close(self) -> None:
        """The model is unloaded."""
        ...
