"""A transport without a network, shared by the client's tests."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from h3_client.fields import InputTensor


class FakeTransport:
    """Answers from a function and remembers every request."""

    url = "fake:1"

    def __init__(self, answer: Callable[[str, dict[str, Any]], dict[str, Any]]) -> None:
        self.answer = answer
        self.requests: list[dict[str, Any]] = []
        self.live_checks = 0
        self.ready = True

    def infer(
        self,
        model: str,
        inputs: Sequence[InputTensor],
        outputs: Sequence[str],
        request_id: str,
        timeout_s: float | None,
    ) -> dict[str, np.ndarray]:
        values = {tensor.name: tensor.values for tensor in inputs}
        request = {
            "model": model,
            "inputs": values,
            "types": {tensor.name: tensor.datatype for tensor in inputs},
            "outputs": list(outputs),
            "request_id": request_id,
            "timeout_s": timeout_s,
        }
        self.requests.append(request)
        return self.answer(model, request)

    def is_live(self) -> bool:
        self.live_checks += 1
        return True

    def is_ready(self, model: str) -> bool:
        return self.ready

    def close(self) -> None:
        self.closed = True


def texts(*values: str | bytes) -> np.ndarray:
    return np.array([v.encode() if isinstance(v, str) else v for v in values], dtype=object)


@pytest.fixture
def fake_transport() -> type[FakeTransport]:
    return FakeTransport


@pytest.fixture
def text_array() -> Callable[..., np.ndarray]:
    return texts
