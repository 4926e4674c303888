"""TensorRT-LLM's FMHA v2 on e4m3 inputs, one scale each for q, k and v: not lossless."""

import math
from itertools import pairwise

import torch

from minimax_h3.attention.capabilities import CAPABILITIES
from minimax_h3.attention.quantize_e4m3 import quantize
from minimax_h3.attention.side_by_side import side_by_side
from minimax_h3.attention.trtllm import HEAD_DIM, TrtllmAttention, attend_packed


class TrtllmE4m3Attention(TrtllmAttention):
    """Quantizes each document and attends; the output is BF16."""

    name = "trtllm_e4m3"
    capabilities = CAPABILITIES[name]

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: tuple[int, ...]
    ) -> torch.Tensor:
        """See `AttentionBackend`."""
        packed = side_by_side(q, k, v)
        attended = []
        for a, b in pairwise(cu_seqlens):
            small = quantize(packed[a:b], per_head=False)
            scale_q, scale_k, scale_v = small.scales[:, :1]
            factor = scale_q * scale_k * (math.log2(math.e) * HEAD_DIM**-0.5)
            # The kernel takes no scale of v from the device; its output is linear in v.
            attended.append(attend_packed(small.packed, (0, b - a), factor).mul_(scale_v))
        return attended[0] if len(attended) == 1 else torch.cat(attended)


def load_backend() -> TrtllmE4m3Attention:
    """Registry entry."""
    return TrtllmE4m3Attention()
