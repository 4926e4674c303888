"""One transformer block: attention and feed-forward, each normed, modulated and gated per row."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from minimax_h3.attention.base import AttentionBackend
from minimax_h3.dit.adaln import BlockModulation
from minimax_h3.ops.rope import RotaryTable
from minimax_h3.ops.row_ops import REFERENCE, RowOps
from minimax_h3.weights.dit_config import DiTConfig


@dataclass(frozen=True, eq=False, slots=True)
class Documents:
    """Who may see whom, and what computes it.

    Attributes:
        attention: the chosen backend.
        cu_seqlens: row bounds of the documents, host integers.
        row_ops: what computes everything between matrix products and attention.
    """

    attention: AttentionBackend
    cu_seqlens: tuple[int, ...]
    row_ops: RowOps = REFERENCE


class SelfAttention(nn.Module):
    """Full attention inside each document; heads together are wider than the residual stream."""

    def __init__(self, config: DiTConfig, dtype: torch.dtype) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.inner_dim
        self.heads = (3, config.num_heads, config.head_dim)
        self.qkv = nn.Linear(width, 3 * inner, bias=False, dtype=dtype)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.qk_norm_eps, dtype=dtype)
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.qk_norm_eps, dtype=dtype)
        self.out = nn.Linear(inner, width, bias=False, dtype=dtype)

    def forward(
        self, rows: torch.Tensor, documents: Documents, rotary: RotaryTable | None = None
    ) -> torch.Tensor:
        """Attend.

        Args:
            rows: [S, hidden].
            documents: bounds and backend.
            rotary: turns q and k; None in the text refiner.

        Returns:
            [S, hidden], a new tensor.
        """
        projected = self.qkv(rows).unflatten(-1, self.heads)
        q, k, v = documents.row_ops.query_key_value(projected, self.q_norm, self.k_norm, rotary)
        attended = documents.attention(q, k, v, documents.cu_seqlens)
        return self.out(attended.flatten(1))


class FeedForward(nn.Module):
    """SwiGLU feed-forward, `fc2(silu(gate) * value)`."""

    def __init__(self, config: DiTConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, 2 * config.ffn_dim, bias=False, dtype=dtype)
        self.fc2 = nn.Linear(config.ffn_dim, config.hidden_size, bias=False, dtype=dtype)

    def forward(self, rows: torch.Tensor, row_ops: RowOps) -> torch.Tensor:
        """[S, hidden] to [S, hidden], a new tensor."""
        return self.fc2(row_ops.swiglu(self.fc1(rows)))


class ModulatedNorm(NamedTuple):
    """A norm and the tables that modulate it."""

    norm: nn.RMSNorm
    shift: torch.Tensor
    scale: torch.Tensor


class Block(nn.Module):
    """One of the blocks over the packed sequence. Source: model sheet 1.3, step 5."""

    def __init__(self, config: DiTConfig, dtype: torch.dtype) -> None:
        super().__init__()
        width = config.hidden_size
        self.norm1 = nn.RMSNorm(width, eps=config.norm_eps, dtype=dtype)
        self.attn = SelfAttention(config, dtype)
        self.norm2 = nn.RMSNorm(width, eps=config.norm_eps, dtype=dtype)
        self.mlp = FeedForward(config, dtype)
        self.adaln = nn.Linear(config.time_out_dim, config.adaln_dim, dtype=dtype)

    def entry(self, modulation: BlockModulation) -> ModulatedNorm:
        """What the residual stream passes on its way into this block."""
        return ModulatedNorm(self.norm1, modulation.attention_shift, modulation.attention_scale)

    def forward(
        self,
        hidden: torch.Tensor,
        normed: torch.Tensor,
        modulation: BlockModulation,
        adaln_rows: torch.Tensor,
        rotary: RotaryTable,
        documents: Documents,
        following: ModulatedNorm | None,
    ) -> torch.Tensor:
        """Update the residual stream in place, and norm it for the next block in the same pass.

        Args:
            hidden: [S, hidden].
            normed: [S, hidden], the stream through this block's `entry`; may be overwritten.
            modulation: this block's tables; its own projection is not run here.
            adaln_rows: int64 [S], rows of those tables.
            rotary: cosines and sines of the rows.
            documents: bounds, attention and row operations.
            following: the next block's `entry`; None in the last block.

        Returns:
            [S, hidden], the stream through `following`, or the stream itself.
        """
        ops, middle = documents.row_ops, (self.norm2, *modulation[3:5])
        branch = self.attn(normed, documents, rotary)
        branch = ops.gated_norm_modulate_(
            hidden, branch, modulation.attention_gate, *middle, adaln_rows
        )
        branch = self.mlp(branch, ops)
        if following is None:
            ops.gated_residual_(hidden, branch, modulation.mlp_gate, adaln_rows)
            return hidden
        return ops.gated_norm_modulate_(hidden, branch, modulation.mlp_gate, *following, adaln_rows)
