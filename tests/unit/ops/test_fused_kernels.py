"""Fused kernels in Triton's interpreter, against the plain operations; on a GPU see tests/gpu."""

import pytest
import torch
from oracles.fused_cases import (
    CHECKS,
    Case,
    check_final_tables,
    check_wrong_gate_is_noticed,
)
from oracles.interpreted import import_interpreted

from minimax_h3.ops.row_ops import RowOps
from minimax_h3.schedules.euler import EulerStep, euler_step_

CPU = torch.device("cpu")
CASE = Case()

fused, fused_euler = import_interpreted(
    "minimax_h3.ops.kernels.fused", "minimax_h3.ops.kernels.euler"
)


def ops(exact: bool) -> RowOps:
    return fused.FusedOps(exact=exact)


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
    fused_euler.euler_step_(ours[300:], velocity[300:].clone(), step)
    euler_step_(theirs[300:], velocity[300:].clone(), step)
    assert torch.equal(ours, theirs)
    assert torch.equal(ours[:300], rows[:300])
