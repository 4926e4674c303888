"""The text refiner: plain pre-norm blocks over the text rows of each request.

It sees text only: no other stream, no rotary embedding, no time. Its output is therefore the same
for every step and is computed once per request. Source: model sheet 1.3, step 2.
"""

import torch
from torch import nn

from minimax_h3.dit.block import Documents, FeedForward, SelfAttention
from minimax_h3.ops.norm import rms_norm
from minimax_h3.weights.dit_config import DiTConfig


class RefinerBlock(nn.Module):
    """Attention and feed-forward, ungated."""

    def __init__(self, config: DiTConfig, dtype: torch.dtype) -> None:
        super().__init__()
        width = config.hidden_size
        self.norm1 = nn.RMSNorm(width, eps=config.norm_eps, dtype=dtype)
        self.attn = SelfAttention(config, dtype)
        self.norm2 = nn.RMSNorm(width, eps=config.norm_eps, dtype=dtype)
        self.mlp = FeedForward(config, dtype)

    def forward(self, hidden: torch.Tensor, documents: Documents) -> None:
        """Update the text rows [L, hidden] in place."""
        hidden.add_(self.attn(rms_norm(hidden, self.norm1), documents))
        hidden.add_(self.mlp(rms_norm(hidden, self.norm2), documents.row_ops))


class Refiner(nn.Module):
    """All refiner blocks and the norm behind them."""

    def __init__(self, config: DiTConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            RefinerBlock(config, dtype) for _ in range(config.num_refiner_layers)
        )
        self.final_norm = nn.RMSNorm(config.hidden_size, eps=config.final_norm_eps, dtype=dtype)

    def forward(self, text: torch.Tensor, documents: Documents) -> torch.Tensor:
        """Refine projected text.

        Args:
            text: [L, hidden]; overwritten, it serves as scratch.
            documents: bounds of the requests within the text rows, and the backend.

        Returns:
            [L, hidden], a new tensor.
        """
        for block in self.blocks:
            block(text, documents)
        return rms_norm(text, self.final_norm)
