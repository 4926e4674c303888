"""Three-axis rotary embedding over the first dimensions of each head; the rest passes through.

Half-split pairs: dimension d turns with d + 3 F, where each axis (t, h, w) owns F frequencies.
Source: model sheet 1.5.
"""

from typing import NamedTuple

import torch


class RotaryTable(NamedTuple):
    """Cosines and sines of a packed sequence, built once per request.

    Attributes:
        cos: [S, 1, 6 F]; both halves are equal.
        sin: [S, 1, 6 F]; the first half is negated, so that one swap of halves makes the rotation.
    """

    cos: torch.Tensor
    sin: torch.Tensor

    def to(self, device: torch.device, dtype: torch.dtype) -> "RotaryTable":
        """The same table elsewhere."""
        return RotaryTable(self.cos.to(device, dtype), self.sin.to(device, dtype))


def rotary_table(positions: torch.Tensor, freqs: int, theta: float) -> RotaryTable:
    """Cosines and sines of every row, fp32 on the device of the positions.

    Args:
        positions: fp64 [S, 3], (t, h, w); rounded to fp32 before the angles are formed.
        freqs: frequencies per axis, F; all axes share them.
        theta: base; frequency i is `theta ** (-i / F)`.
    """
    exponents = torch.arange(freqs, dtype=torch.float32, device=positions.device) / freqs
    angles = positions.to(torch.float32)[:, :, None] * (1.0 / theta**exponents)
    cos, sin = angles.cos().flatten(1), angles.sin().flatten(1)
    return RotaryTable(
        torch.cat((cos, cos), dim=-1)[:, None], torch.cat((-sin, sin), dim=-1)[:, None]
    )


def rotate_(heads: torch.Tensor, table: RotaryTable) -> torch.Tensor:
    """Rotate every head in place.

    Args:
        heads: [S, H, D] with D >= 6 F; updated.
        table: dtype and device of `heads`.

    Returns:
        `heads`.
    """
    rotated = heads[..., : table.cos.shape[-1]]
    first, second = rotated.chunk(2, dim=-1)
    swapped = torch.cat((second, first), dim=-1)
    rotated.mul_(table.cos).add_(swapped.mul_(table.sin))
    return heads
