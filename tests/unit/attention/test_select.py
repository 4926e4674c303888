import sys
from types import ModuleType

import pytest
import torch

from minimax_h3.attention.base import BACKENDS, select
from minimax_h3.attention.capabilities import CAPABILITIES, AttentionCapabilities
from minimax_h3.attention.sdpa import SdpaAttention
from minimax_h3.core.config import ATTENTION_BACKENDS
from minimax_h3.core.errors import BackendUnavailableError

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
PICKY = AttentionCapabilities(
    multi_document=False,
    dtypes=frozenset({"bfloat16"}),
    devices=frozenset({"cuda"}),
    max_head_dim=128,
    head_dim_multiple=64,
)


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A backend with narrow capabilities, one whose wheel is missing, and the reference."""

    class Picky(SdpaAttention):
        name = "picky"
        capabilities = PICKY

    module = ModuleType("picky_backend")
    module.load_backend = Picky  # type: ignore[attr-defined]  # that is how a module gets names
    monkeypatch.setitem(sys.modules, "picky_backend", module)
    return {"absent": "no_such_wheel", "picky": "picky_backend", **BACKENDS}


def test_configuration_and_registry_name_the_same_backends() -> None:
    assert set(ATTENTION_BACKENDS) == {"auto", *BACKENDS}
    assert list(CAPABILITIES) == list(BACKENDS)


def test_a_backend_can_be_asked_for_by_name() -> None:
    backend, reason = select("sdpa", CPU, torch.float32, 128)
    assert backend.name == "sdpa"
    assert reason == "sdpa was asked for by name"


def test_auto_says_what_it_chose_and_what_it_passed_over(backends: dict[str, str]) -> None:
    backend, reason = select("auto", CPU, torch.float32, 128, backends=backends)
    assert backend.name == "sdpa"
    assert "auto: sdpa is the first that can run here" in reason
    assert "absent: cannot be imported" in reason
    assert "picky: device cpu is not one of cuda" in reason


def test_auto_prefers_the_first_that_can_run(backends: dict[str, str]) -> None:
    backend, _ = select("auto", CUDA, torch.bfloat16, 128, backends=backends)
    assert backend.name == "picky"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        BackendUnavailableError, match="'flash9' is not known; legal: auto, fa3, cudnn"
    ):
        select("flash9", CPU, torch.float32, 128)


@pytest.mark.parametrize(
    ("device", "dtype", "head_dim", "documents", "why"),
    [
        (CPU, torch.bfloat16, 128, 1, "device cpu is not one of cuda"),
        (CUDA, torch.float32, 128, 1, "dtype float32 is not one of bfloat16"),
        (CUDA, torch.bfloat16, 192, 1, "head_dim 192 is not a multiple of 64 up to 128"),
        (CUDA, torch.bfloat16, 96, 1, "head_dim 96 is not a multiple of 64 up to 128"),
        (CUDA, torch.bfloat16, 128, 2, "it takes one document, not 2"),
    ],
)
def test_a_named_backend_that_cannot_run_says_why(
    backends: dict[str, str],
    device: torch.device,
    dtype: torch.dtype,
    head_dim: int,
    documents: int,
    why: str,
) -> None:
    with pytest.raises(BackendUnavailableError, match=f"picky cannot run here; picky: {why}"):
        select("picky", device, dtype, head_dim, documents, backends=backends)


def test_a_missing_wheel_breaks_its_own_backend_only(backends: dict[str, str]) -> None:
    with pytest.raises(BackendUnavailableError, match=r"absent: cannot be imported.*no_such_wheel"):
        select("absent", CPU, torch.float32, 128, backends=backends)


def test_auto_with_no_candidate_names_every_reason() -> None:
    with pytest.raises(BackendUnavailableError, match="sdpa: dtype float16 is not one of"):
        select("auto", CPU, torch.float16, 128)
