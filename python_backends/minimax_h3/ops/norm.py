"""Norms, modulation, gates and the gated feed-forward activation: what fused kernels must equal.

Each operation rounds to the tensor's own dtype after the norm and after every product and sum, as
the reference implementation does in BF16. A name that ends in `_` works in place on its first
argument.
Source: model sheet 1.3 and 1.8.
"""

import torch
from torch.nn import functional


def rms_norm(rows: torch.Tensor, norm: torch.nn.RMSNorm) -> torch.Tensor:
    """Root-mean-square norm over the last dimension, computed in fp32 and rounded once.

    Args:
        rows: [..., width]; may be strided.
        norm: weight [width] and eps.

    Returns:
        The shape of `rows`, a new tensor.
    """
    return functional.rms_norm(rows, norm.normalized_shape, norm.weight, norm.eps)


def norm_modulate(
    hidden: torch.Tensor,
    norm: torch.nn.RMSNorm,
    shift: torch.Tensor,
    scale: torch.Tensor,
    index: torch.Tensor,
) -> torch.Tensor:
    """RMSNorm, then `(1 + scale) * rows + shift` with a table row for each packed row.

    Args:
        hidden: [S, width]; not changed.
        norm: weight [width] and eps.
        shift: table [M, width].
        scale: table [M, width].
        index: int64 [S], rows of the tables.

    Returns:
        [S, width], a new tensor.
    """
    normed = rms_norm(hidden, norm)
    # One plus the table, then the lookup: the same bits as the other way round, on fewer rows.
    normed.mul_((1.0 + scale).index_select(0, index))
    return normed.add_(shift.index_select(0, index))


def gated_residual_(
    hidden: torch.Tensor, branch: torch.Tensor, gate: torch.Tensor, index: torch.Tensor
) -> None:
    """Add `gate * branch` to the residual stream, with a table row for each packed row.

    Args:
        hidden: [S, width]; updated.
        branch: [S, width]; overwritten, it serves as scratch.
        gate: table [M, width], used raw.
        index: int64 [S], rows of the table.
    """
    hidden.add_(branch.mul_(gate.index_select(0, index)))


def swiglu(gate_value: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * value` of halves laid side by side.

    Args:
        gate_value: [S, 2 * width], gate first.

    Returns:
        [S, width], a new tensor.
    """
    gate, value = gate_value.chunk(2, dim=-1)
    return functional.silu(gate).mul_(value)
