"""Fused kernels on the GPU at the released widths, against the plain operations."""

import pytest
import torch
from oracles.fused_cases import CHECKS, Case, check_final_tables, check_wrong_gate_is_noticed

from minimax_h3.ops.row_ops import RowOps, select_row_ops
from minimax_h3.schedules.euler import EulerStep, euler_step_

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

GPU = torch.device("cuda", 0)
CASES = {
    "released": Case(rows=1000, width=5376, heads=56, head_dim=128, freqs=16),
    "tiny": Case(),
}


def ops(exact: bool) -> RowOps:
    return select_row_ops("fused_exact" if exact else "fused", GPU).row_ops


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "fused"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("case", CASES)
def test_kernels_equal_the_plain_operations(
    check: str, exact: bool, dtype: torch.dtype, case: str
) -> None:
    CHECKS[check](ops(exact), exact, CASES[case], GPU, dtype)


def test_tables_that_lie_side_by_side() -> None:
    check_final_tables(ops(False), CASES["released"], GPU, torch.bfloat16)


def test_the_comparison_notices_a_wrong_gate() -> None:
    check_wrong_gate_is_noticed(ops(False), CASES["released"], GPU)


def test_more_rows_than_a_32_bit_offset_holds() -> None:
    """109,318 rows of 28,672 columns are 3.1 billion values."""
    rows, width = 109_318, 14_336
    gate_value = torch.randn(rows, 2 * width, device=GPU, dtype=torch.bfloat16)
    actual = ops(True).swiglu(gate_value)
    last = gate_value[-3:].chunk(2, dim=-1)
    expected = torch.nn.functional.silu(last[0]) * last[1]
    torch.testing.assert_close(actual[-3:], expected, rtol=1e-2, atol=1e-2)


def test_euler_step_is_bitwise_the_plain_one() -> None:
    from minimax_h3.ops.kernels.euler import euler_step_ as fused

    step = EulerStep(0.37, 0.81, 0.19)
    rows, velocity = torch.randn(2, 40_000, 96, device=GPU)
    ours, theirs = rows.clone(), rows.clone()
    fused(ours[1008:], velocity[1008:].clone(), step)
    euler_step_(theirs[1008:], velocity[1008:].clone(), step)
    assert torch.equal(ours, theirs)
    assert torch.equal(ours[:1008], rows[:1008])
