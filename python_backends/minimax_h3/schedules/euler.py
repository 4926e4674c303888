"""The Euler step: fp32, from a data-ward velocity, with no noise put back in.

`x0 = x + (1 - t) * v`, then `x = r * x + (1 - r) * x0` with `r = sigma_next / sigma`.
"""

from dataclasses import dataclass

import torch

from minimax_h3.schedules.sigma import SigmaSchedule


@dataclass(frozen=True, slots=True)
class EulerStep:
    """Coefficients of one step as host numbers, so that a step never waits for the device.

    Attributes:
        velocity_scale: `1 - t`, what turns a velocity into the distance to the clean sample.
        keep: `sigma_next / sigma`, the share of the sample that stays.
        take: `1 - keep`, the share of the clean estimate.
    """

    velocity_scale: float
    keep: float
    take: float


def euler_steps(schedule: SigmaSchedule) -> tuple[EulerStep, ...]:
    """Coefficients of every step of a schedule, each rounded to fp32.

    `1 - t` and `sigma` differ in the last fp32 bit below one half. The released model takes the
    first for the clean estimate and the second for the ratio, and so do we.

    Source: model sheet 3, pipeline sheet 3.
    """
    keep = schedule.sigmas[1:] / schedule.sigmas[:-1]
    return tuple(
        EulerStep(*values)
        for values in zip(
            (1 - schedule.times).tolist(), keep.tolist(), (1.0 - keep).tolist(), strict=True
        )
    )


def euler_step_(rows: torch.Tensor, velocity: torch.Tensor, step: EulerStep) -> None:
    """Move `rows` one step towards the data, in place.

    Args:
        rows: fp32, any shape and device; overwritten with the next sample.
        velocity: fp32, shape and device of `rows`; overwritten, it serves as scratch.
        step: coefficients from `euler_steps`.
    """
    assert rows.dtype == velocity.dtype == torch.float32
    clean = velocity.mul_(step.velocity_scale).add_(rows)
    rows.mul_(step.keep).add_(clean.mul_(step.take))
