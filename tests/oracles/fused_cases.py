"""What every fused kernel must equal, on any device: the plain operations on the same numbers.

Tolerances are relative to the plain operations in fp64. The exact variant rounds where PyTorch
rounds, so it may differ only where one fp32 result lies on a rounding edge of BF16.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import silu

from minimax_h3.ops.norm import gated_residual_, norm_modulate
from minimax_h3.ops.rope import RotaryTable, rotary_table
from minimax_h3.ops.row_ops import REFERENCE, RowOps

EXACT_SHARE = 0.999  # elements within one BF16 ulp
ERROR_RATIO = 1.2  # of the plain BF16 operations' own error against fp64


@dataclass(frozen=True)
class Case:
    """Sizes of one comparison and the largest value that an outlier takes."""

    rows: int = 11
    width: int = 168
    heads: int = 7
    head_dim: int = 16
    freqs: int = 2
    outlier: float = 500.0


def draw(*shape: int, seed: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to(device, dtype)


def with_outliers(rows: torch.Tensor, size: float) -> torch.Tensor:
    """A channel and a row of huge values, as trained activations have them."""
    rows[:, 3] = size
    rows[min(5, rows.shape[0] - 1)] *= size / 4
    return rows


def norm(width: int, device: torch.device, dtype: torch.dtype, seed: int = 9) -> nn.RMSNorm:
    module = nn.RMSNorm(width, eps=1e-5, dtype=dtype, device=device).requires_grad_(False)
    module.weight.copy_(1 + 0.3 * draw(width, seed=seed, device=device, dtype=torch.float32))
    return module


def ulps(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Distance in BF16 steps, int32."""

    def ordered(values: torch.Tensor) -> torch.Tensor:
        bits = values.contiguous().view(torch.int16).to(torch.int32)
        return torch.where(bits < 0, -32768 - bits, bits)

    return (ordered(actual) - ordered(expected)).abs()


def assert_exact(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal within one ulp nearly everywhere, and finite."""
    assert actual.isfinite().all()
    assert actual.dtype == expected.dtype
    if actual.dtype == torch.float32:
        torch.testing.assert_close(actual, expected, rtol=2e-6, atol=1e-6)
        return
    share = float((ulps(actual, expected) <= 1).float().mean())
    assert share >= EXACT_SHARE, share


def error(actual: torch.Tensor, truth: torch.Tensor) -> float:
    """Relative L2 error."""
    return float((actual.double() - truth.double()).norm() / truth.double().norm())


def assert_no_worse(actual: torch.Tensor, plain: torch.Tensor, truth: torch.Tensor) -> None:
    """Not farther from the truth than the plain operations, up to `ERROR_RATIO`."""
    assert actual.isfinite().all()
    ours, theirs = error(actual, truth), error(plain, truth)
    assert ours <= max(ERROR_RATIO * theirs, 1e-6), (ours, theirs)


class Tables:
    """Modulation tables, an index and a residual stream for the modulation kernels."""

    def __init__(self, case: Case, device: torch.device, dtype: torch.dtype) -> None:
        def rows(count: int, seed: int) -> torch.Tensor:
            return draw(count, case.width, seed=seed, device=device, dtype=dtype)

        self.hidden = with_outliers(rows(case.rows, 1), case.outlier)
        self.branch = rows(case.rows, 2)
        self.gate, self.shift, self.scale = (rows(6, seed) for seed in (3, 4, 5))
        picks = torch.randint(0, 6, (case.rows,), generator=torch.Generator().manual_seed(6))
        self.index = picks.to(device)
        self.norm = norm(case.width, device, dtype)

    def run(self, ops: RowOps) -> tuple[torch.Tensor, ...]:
        """Residual stream and normed rows of each modulation operation."""
        plain = ops.norm_modulate(self.hidden, self.norm, self.shift, self.scale, self.index)
        stream, gated = self.hidden.clone(), self.hidden.clone()
        normed = ops.gated_norm_modulate_(
            stream, self.branch.clone(), self.gate, self.norm, self.shift, self.scale, self.index
        )
        ops.gated_residual_(gated, self.branch.clone(), self.gate, self.index)
        return plain, stream, normed, gated

    def truth(self) -> tuple[torch.Tensor, ...]:
        """The same in fp64 from the same numbers."""
        wide = Tables.__new__(Tables)
        for name in ("hidden", "branch", "gate", "shift", "scale"):
            setattr(wide, name, getattr(self, name).double())
        wide.index = self.index
        wide.norm = nn.RMSNorm(self.norm.weight.numel(), eps=1e-5, dtype=torch.float64)
        wide.norm.weight = nn.Parameter(self.norm.weight.double(), requires_grad=False)
        return wide.run(REFERENCE)


def check_modulation(
    ops: RowOps, exact: bool, case: Case, device: torch.device, dtype: torch.dtype
) -> None:
    tables = Tables(case, device, dtype)
    before = tables.hidden.clone()
    actual, plain = tables.run(ops), tables.run(REFERENCE)
    assert torch.equal(tables.hidden, before)
    for ours, theirs, truth in zip(actual, plain, tables.truth(), strict=True):
        if exact:
            assert_exact(ours, theirs)
        else:
            assert_no_worse(ours, theirs, truth)


def check_final_tables(ops: RowOps, case: Case, device: torch.device, dtype: torch.dtype) -> None:
    """Tables that lie side by side, as the output norm's do."""
    tables = Tables(case, device, dtype)
    shift, scale = torch.stack((tables.shift, tables.scale), dim=1).unbind(1)
    ours = ops.norm_modulate(tables.hidden, tables.norm, shift, scale, tables.index)
    theirs = norm_modulate(tables.hidden, tables.norm, shift, scale, tables.index)
    assert error(ours, theirs) < 1e-2


def rotary(case: Case, device: torch.device, dtype: torch.dtype) -> RotaryTable:
    positions = 40 * torch.rand(
        case.rows, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(7)
    )
    return rotary_table(positions, case.freqs, 10000.0).to(device, dtype)


def check_rotation(
    ops: RowOps, exact: bool, case: Case, device: torch.device, dtype: torch.dtype
) -> None:
    projected = draw(case.rows, 3, case.heads, case.head_dim, seed=8, device=device, dtype=dtype)
    projected[:, :, :, 1] *= case.outlier
    norms = [norm(case.head_dim, device, dtype, seed) for seed in (10, 11)]
    wide_norms = []
    for module in norms:
        wide = nn.RMSNorm(case.head_dim, eps=1e-5, dtype=torch.float64)
        wide.weight = nn.Parameter(module.weight.double(), requires_grad=False)
        wide_norms.append(wide)
    for table in (rotary(case, device, dtype), None):
        actual = ops.query_key_value(projected.clone(), *norms, table)
        plain = REFERENCE.query_key_value(projected.clone(), *norms, table)
        wide_table = None if table is None else RotaryTable(table.cos.double(), table.sin.double())
        truth = REFERENCE.query_key_value(projected.double(), *wide_norms, wide_table)
        for ours, theirs, exactly in zip(actual, plain, truth, strict=True):
            if exact:
                assert_exact(ours, theirs)
            else:
                assert_no_worse(ours, theirs, exactly)
        assert torch.equal(actual[2], projected[:, 2])


def check_swiglu(
    ops: RowOps, exact: bool, case: Case, device: torch.device, dtype: torch.dtype
) -> None:
    gate_value = 3 * draw(case.rows, 2 * case.width, seed=12, device=device, dtype=dtype)
    with_outliers(gate_value, case.outlier)
    gate_value[0, : case.width] = -case.outlier  # the activation underflows to zero here
    actual, plain = ops.swiglu(gate_value), REFERENCE.swiglu(gate_value)
    gate, value = gate_value.double().chunk(2, dim=-1)
    if exact:
        assert_exact(actual, plain)
    else:
        assert_no_worse(actual, plain, silu(gate) * value)


def check_wrong_gate_is_noticed(ops: RowOps, case: Case, device: torch.device) -> None:
    """The comparison itself: the kernel against another gate must not pass."""
    tables = Tables(case, device, torch.bfloat16)
    ours, theirs = tables.hidden.clone(), tables.hidden.clone()
    ops.gated_residual_(ours, tables.branch.clone(), tables.gate, tables.index)
    gated_residual_(theirs, tables.branch.clone(), tables.gate + 1, tables.index)
    assert error(ours[:, 4:], theirs[:, 4:]) > 1e-2


CHECKS: dict[str, Callable[..., None]] = {
    "modulation": check_modulation,
    "rotation": check_rotation,
    "swiglu": check_swiglu,
}
