"""One transformer block: attention and feed-forward, each normed, modulated and gated per row."""

from dataclasses import dataclass

import torch
from torch import nn

from minimax_h3.attention.base import AttentionBackend
from minimax_h3.dit.adaln import BlockModulation
from minimax_h3.ops.norm import gated_residual_, norm_modulate, rms_norm, swiglu
from minimax_h3.ops.rope import RotaryTable, rotate_
from minimax_h3.weights.dit_config import DiTConfig


@dataclass(frozen=True, eq=False, slots=True)
class Documents:
    """Who may see whom, and what computes it.

    Attributes:
        attention: the chosen backend.
        cu_seqlens: row bounds of the documents, host integers.
    """

    attention: AttentionBackend
    cu_seqlens: tuple[int, ...]


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
        q, k, v = self.qkv(rows).unflatten(-1, self.heads).unbind(1)
        q, k = rms_norm(q, self.q_norm), rms_norm(k, self.k_norm)
        if rotary is not None:
            rotate_(q, rotary)
            rotate_(k, rotary)
        attended = documents.attention(q, k, v, documents.cu_seqlens)
        return self.out(attended.flatten(1))


class FeedForward(nn.Module):
    """SwiGLU feed-forward, `fc2(silu(gate) * value)`."""

    def __init__(self, config: DiTConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, 2 * config.ffn_dim, bias=False, dtype=dtype)
        self.fc2 = nn.Linear(config.ffn_dim, config.hidden_size, bias=False, dtype=dtype)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[S, hidden] to [S, hidden], a new tensor."""
        return self.fc2(swiglu(self.fc1(rows)))


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

    def forward(
        self,
        hidden: torch.Tensor,
        modulation: BlockModulation,
        adaln_rows: torch.Tensor,
        rotary: RotaryTable,
        documents: Documents,
    ) -> None:
        """Update the residual stream in place.

        Args:
            hidden: [S, hidden].
            modulation: this block's tables; its own projection is not run here.
            adaln_rows: int64 [S], rows of those tables.
            rotary: cosines and sines of the rows.
            documents: bounds and backend.
        """
        shift, scale, gate = modulation[:3]
        normed = norm_modulate(hidden, self.norm1, shift, scale, adaln_rows)
        gated_residual_(hidden, self.attn(normed, documents, rotary), gate, adaln_rows)
        shift, scale, gate = modulation[3:]
        normed = norm_modulate(hidden, self.norm2, shift, scale, adaln_rows)
        gated_residual_(hidden, self.mlp(normed), gate, adaln_rows)
