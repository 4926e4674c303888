"""The Euler step in one pass. Equals `euler_step_` of `minimax_h3.schedules.euler` bit for bit.

Only target rows are handed over, so condition rows stay as they are.
"""

from typing import Protocol

import torch
import triton
import triton.language as tl

BLOCK = 1024


class Coefficients(Protocol):
    """See `minimax_h3.schedules.euler.EulerStep`."""

    @property
    def velocity_scale(self) -> float:
        """What turns a velocity into the distance to the clean sample."""
        ...

    @property
    def keep(self) -> float:
        """Share of the sample that stays."""
        ...

    @property
    def take(self) -> float:
        """Share of the clean estimate."""
        ...


@triton.jit(do_not_specialize=["velocity_scale", "keep", "take"])
def _euler(rows_ptr, velocity_ptr, velocity_scale, keep, take, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    rows = tl.load(rows_ptr + at, mask=inside, other=0.0)
    velocity = tl.load(velocity_ptr + at, mask=inside, other=0.0)
    clean = velocity * velocity_scale + rows
    tl.store(rows_ptr + at, rows * keep + clean * take, mask=inside)


def euler_step_(rows: torch.Tensor, velocity: torch.Tensor, step: Coefficients) -> None:
    """Move `rows` one step towards the data, in place.

    Args:
        rows: fp32, dense; overwritten with the next sample.
        velocity: fp32, dense, shape of `rows`.
        step: the step's coefficients, host numbers.
    """
    assert rows.dtype == velocity.dtype == torch.float32
    assert rows.is_contiguous()
    assert velocity.is_contiguous()
    if not rows.numel():  # a locked driving audio: no row moves, and an empty grid is no launch
        return
    # Without contraction each product rounds before its sum, as the separate operations do.
    _euler[(triton.cdiv(rows.numel(), BLOCK),)](
        rows,
        velocity,
        step.velocity_scale,
        step.keep,
        step.take,
        rows.numel(),
        BLOCK=BLOCK,
        num_warps=4,
        enable_fp_fusion=False,
    )
