"""Sigma schedules: `num_points` noise levels from 1 to 0, and one forward fewer.

`sigma` is the noise level (1 = noise, 0 = clean), `t = 1 - sigma` the time that the model is told.
Both stay in [0, 1]; nothing is scaled by 1000.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from minimax_h3.core.errors import InvalidRequestError

SIGMAS_LEGAL = "at least two finite numbers, strictly decreasing from (0, 1] to exactly 0"


@dataclass(frozen=True, eq=False, slots=True)
class SigmaSchedule:
    """Noise levels of one stream of one request.

    Attributes:
        sigmas: fp32 [N] on the CPU, strictly decreasing, the last one 0.
        times: fp32 [N - 1], `1 - sigmas[:-1]`: the model time of each forward.
    """

    sigmas: torch.Tensor
    times: torch.Tensor

    @property
    def num_points(self) -> int:
        """Sigma points, the terminal 0 included."""
        return self.sigmas.numel()

    @property
    def num_forwards(self) -> int:
        """Model calls: one fewer than points."""
        return self.sigmas.numel() - 1

    @classmethod
    def build(cls, num_points: int, shift: float) -> "SigmaSchedule":
        """The released schedule: a uniform grid pushed through the shift, in fp32 on the CPU.

        Args:
            num_points: sigma points, 2 or more; 50 points are 49 forwards.
            shift: above 0; 12 for video and 3 for audio unless the request says otherwise.

        Raises:
            InvalidRequestError: too few points, a shift out of range, or one so large that fp32
                cannot tell neighbouring points apart.

        Source: model sheet 3, pipeline sheet 3.
        """
        if num_points < 2:
            raise InvalidRequestError(f"num_points: {num_points} is not legal; legal: 2 or more")
        if not (shift > 0 and math.isfinite(shift)):
            raise InvalidRequestError(f"shift: {shift} is not legal; legal: finite and above 0")
        base = torch.linspace(1.0, 0.0, num_points, dtype=torch.float32)
        sigmas = shift * base / (1 + (shift - 1) * base)
        # Rounding may put the first point above 1, by the more the smaller the shift, because
        # `1 + (shift - 1)` loses digits then; the released schedule keeps it.
        rounding = torch.finfo(torch.float32).eps * (1 + 1 / shift)
        return cls._checked(sigmas, highest=1.0 + rounding)

    @classmethod
    def from_sigmas(cls, sigmas: Sequence[float] | torch.Tensor) -> "SigmaSchedule":
        """A schedule given point by point, used as it is.

        Args:
            sigmas: [N], N >= 2, strictly decreasing, the first in (0, 1], the last exactly 0.

        Raises:
            InvalidRequestError: anything else; the first offending point is named.
        """
        levels = torch.as_tensor(sigmas, dtype=torch.float32).to("cpu")
        if levels.ndim != 1 or levels.numel() < 2:
            shape = "x".join(map(str, levels.shape)) or "a single number"
            raise InvalidRequestError(f"sigmas: shape {shape} is not legal; legal: {SIGMAS_LEGAL}")
        return cls._checked(levels, highest=1.0)

    @classmethod
    def _checked(cls, levels: torch.Tensor, highest: float) -> "SigmaSchedule":
        previous = math.nextafter(highest, math.inf)
        for index, level in enumerate(levels.tolist()):
            if not 0.0 <= level < previous:  # also refuses NaN
                raise InvalidRequestError(
                    f"sigmas[{index}]: {level:g} is not legal; legal: {SIGMAS_LEGAL}"
                )
            previous = level
        if previous != 0.0:
            raise InvalidRequestError(
                f"sigmas[{levels.numel() - 1}]: {previous:g} is not legal; legal: {SIGMAS_LEGAL}"
            )
        return cls(sigmas=levels, times=1.0 - levels[:-1])
