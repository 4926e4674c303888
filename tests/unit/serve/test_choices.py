"""Backends that cannot run on this machine are refused before any model is loaded."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from minimax_h3.attention import libraries
from minimax_h3.attention.base import BACKENDS, select
from minimax_h3.attention.capabilities import Processor
from minimax_h3.core.config import ATTENTION_BACKENDS, StageConfig
from minimax_h3.core.errors import BackendUnavailableError
from minimax_h3.serve import gpus
from minimax_h3.serve.choices import check_choices
from minimax_h3.serve.settings import ServeSettings, check_settings

CPU, HOPPER = Processor("cpu"), Processor("cuda", "NVIDIA H200", (9, 0))
ADA = Processor("cuda", "Some Ada GPU", (8, 9))
ON_GPU_ONLY = sorted({*ATTENTION_BACKENDS} - {"auto", "sdpa"})


def check(processor: Processor, head_dim: int = 128, **parameters: str) -> None:
    checkpoint = SimpleNamespace(dit_config=SimpleNamespace(head_dim=head_dim))
    check_choices(StageConfig(**parameters), checkpoint, processor)


@pytest.fixture(autouse=True)
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of compiled libraries, with fa3 built; the package triton can be imported."""
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    monkeypatch.setattr(libraries, "NATIVE_FOLDER", tmp_path)
    (tmp_path / "h3_fa3.so").write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize("name", ON_GPU_ONLY)
def test_on_a_cpu_both_checks_refuse_and_the_early_one_names_what_can_run(name: str) -> None:
    with pytest.raises(BackendUnavailableError) as early:
        check(CPU, attention=name)
    told = f"attention: {name} cannot run here"
    assert str(early.value) == f"{told}: device cpu is not one of cuda; legal: auto, sdpa"
    with pytest.raises(BackendUnavailableError, match=told):
        select(name, torch.device("cpu"), torch.float32, 128)


@pytest.mark.parametrize(
    ("processor", "parameters", "told"),
    [
        (ADA, {"attention": "fa3"}, "Some Ada GPU does not have compute capability 9.0; legal: "),
        (ADA, {"attention": "fa3_e4m3"}, "9.0; legal: auto, cudnn, sdpa"),
        (HOPPER, {"attention": "trtllm"}, "h3_trtllm.so is missing; build it with `python -m "),
        (HOPPER, {"attention": "trtllm"}, "`; legal: auto, fa3, cudnn, sdpa, fa3_e4m3"),
        (HOPPER, {"attention": "fa3", "dtype": "fp32"}, "dtype float32 is not one of bfloat16; "),
        (CPU, {"row_ops": "fused"}, "row-ops: fused cannot run here: device cpu is not cuda; "),
        (CPU, {"row_ops": "fused_exact"}, "device cpu is not cuda; legal: auto, reference"),
    ],
)
def test_refused_with_the_reason_and_what_can_run(
    processor: Processor, parameters: dict[str, str], told: str
) -> None:
    with pytest.raises(BackendUnavailableError) as refused:
        check(processor, **parameters)
    assert told in str(refused.value)


def test_heads_that_a_kernel_does_not_have() -> None:
    with pytest.raises(BackendUnavailableError, match=r"head_dim 32 is .*; legal: auto, cudnn, sd"):
        check(HOPPER, head_dim=32, attention="fa3")


def test_fused_operations_need_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(BackendUnavailableError, match="the package triton cannot be imported"):
        check(HOPPER, row_ops="fused")
    with pytest.raises(BackendUnavailableError, match=r"fa3_e4m3 cannot run here: cannot be imp"):
        check(HOPPER, attention="fa3_e4m3")


@pytest.mark.parametrize(
    ("processor", "parameters"),
    [
        (CPU, {"attention": "sdpa", "row_ops": "reference"}),
        (CPU, {"attention": "sdpa", "dtype": "bf16"}),
        (CPU, {}),
        (ADA, {"attention": "cudnn"}),
        (HOPPER, {"attention": "fa3"}),
        (HOPPER, {"attention": "fa3_e4m3"}),
        (HOPPER, {"attention": "sdpa", "dtype": "fp32"}),
    ],
)
def test_what_can_run_is_legal(processor: Processor, parameters: dict[str, str]) -> None:
    check(processor, **parameters)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_start_is_refused_and_another_machines_command_is_printed(
    settings_with: Callable[..., ServeSettings], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(gpus, "count_gpus", lambda: 0)
    settings = settings_with(stage=StageConfig(attention=name))
    assert check_settings(settings, starts=False).stage.attention == name
    if name == "sdpa":
        check_settings(settings)
        return
    with pytest.raises(BackendUnavailableError, match=f"attention: {name} cannot run here"):
        check_settings(settings)


def test_the_serve_command_imports_no_torch() -> None:
    code = "import sys, minimax_h3.serve.command; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
