"""FlashAttention 3 on e4m3 inputs with a scale for each head: faster, not lossless."""

from itertools import pairwise

import torch

from minimax_h3.attention.capabilities import CAPABILITIES
from minimax_h3.attention.fa3 import HEAD_DIM, Fa3Attention, fa3_library, fa3_strides
from minimax_h3.attention.native import call
from minimax_h3.attention.quantize_e4m3 import quantize
from minimax_h3.attention.side_by_side import side_by_side


class Fa3E4m3Attention(Fa3Attention):
    """Quantizes each document and attends; the output is BF16."""

    name = "fa3_e4m3"
    capabilities = CAPABILITIES[name]

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: tuple[int, ...]
    ) -> torch.Tensor:
        """See `AttentionBackend`."""
        assert cu_seqlens[-1] == q.shape[0]
        packed, out = side_by_side(q, k, v), q.new_empty(q.shape)
        for a, b in pairwise(cu_seqlens):
            small = quantize(packed[a:b])
            parts = (*small.packed.unbind(1), out[a:b])
            call(
                fa3_library(),
                "h3_fa3_e4m3",
                q.device,
                *parts,
                fa3_strides(*parts),
                b - a,
                q.shape[1],
                HEAD_DIM**-0.5,
                small.scales,
            )
        return out


def load_backend() -> Fa3E4m3Attention:
    """Registry entry."""
    return Fa3E4m3Attention()
