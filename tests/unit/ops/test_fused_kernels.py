"""Fused kernels in Triton's interpreter, against the plain operations; on a GPU see tests/gpu."""

import importlib
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from oracles.fused_cases import (
    CHECKS,
    Case,
    check_final_tables,
    check_wrong_gate_is_noticed,
)

from minimax_h3.ops.row_ops import RowOps
from minimax_h3.schedules.euler import EulerStep
from minimax_h3.schedules.euler import euler_step_ as plain_euler_step_

CPU = torch.device("cpu")
CASE = Case()

if torch.cuda.is_available():  # a kernel is compiled or interpreted, not both in one process
    pytest.skip("interpreted only where there is no GPU", allow_module_level=True)
pytest.importorskip("triton", reason="the package triton is not installed")
with pytest.MonkeyPatch.context() as _patch:
    _patch.setenv("TRITON_INTERPRET", "1")
    # PyTorch may have imported it already, and the language decides at import how it runs.
    for _name in [name for name in sys.modules if f"{name}.".startswith("triton.")]:
        if not _name.startswith("triton._C"):
            _patch.delitem(sys.modules, _name)
    FusedOps = importlib.import_module("minimax_h3.ops.kernels.fused").FusedOps
    euler_step_: Callable[..., None] = importlib.import_module(
        "minimax_h3.ops.kernels.euler"
    ).euler_step_
    interpreter = importlib.import_module("triton.runtime.interpreter")
_convert = interpreter._convert_float


def _convert_rounding(values: np.ndarray, source: object, target: object, mode: object) -> object:
    """The interpreter cuts FP32 down to BF16 without rounding; a GPU rounds to nearest even."""
    if str(source) == "fp32" and str(target) == "bf16":
        return torch.from_numpy(values.copy()).bfloat16().view(torch.int16).numpy().view(np.uint16)
    return _convert(values, source, target, mode)


@pytest.fixture(autouse=True)
def _round_to_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "_convert_float", _convert_rounding)


def ops(exact: bool) -> RowOps:
    return FusedOps(exact=exact)


# NumPy runs the interpreter: exp(500) is the infinity that it should be, but with a warning.
@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "fused"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_kernels_equal_the_plain_operations(check: str, exact: bool, dtype: torch.dtype) -> None:
    CHECKS[check](ops(exact), exact, CASE, CPU, dtype)


def test_tables_that_lie_side_by_side() -> None:
    check_final_tables(ops(False), CASE, CPU, torch.bfloat16)


def test_the_comparison_notices_a_wrong_gate() -> None:
    check_wrong_gate_is_noticed(ops(False), CASE, CPU)


def test_euler_step_is_bitwise_the_plain_one_and_leaves_other_rows() -> None:
    step = EulerStep(0.37, 0.81, 0.19)
    rows, velocity = (torch.randn(1301, generator=torch.Generator().manual_seed(s)) for s in (1, 2))
    ours, theirs = rows.clone(), rows.clone()
    euler_step_(ours[300:], velocity[300:].clone(), step)
    plain_euler_step_(theirs[300:], velocity[300:].clone(), step)
    assert torch.equal(ours, theirs)
    assert torch.equal(ours[:300], rows[:300])
