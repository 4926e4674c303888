"""PyTorch's scaled dot product attention: the reference backend, one call for each document."""

from itertools import pairwise

import torch
from torch.nn.functional import scaled_dot_product_attention

from minimax_h3.attention.capabilities import CAPABILITIES


class SdpaAttention:
    """Runs wherever PyTorch does."""

    name = "sdpa"
    capabilities = CAPABILITIES[name]

    def check(self) -> None:
        """PyTorch brings everything it needs."""

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: tuple[int, ...]
    ) -> torch.Tensor:
        """See `AttentionBackend`."""
        assert cu_seqlens[0] == 0
        assert cu_seqlens[-1] == q.shape[0]
        if len(cu_seqlens) == 2:
            return _attend(q, k, v)
        return torch.cat([_attend(q[a:b], k[a:b], v[a:b]) for a, b in pairwise(cu_seqlens)])


def load_backend() -> SdpaAttention:
    """Registry entry."""
    return SdpaAttention()


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """One document, [S, H, D]; the kernel reads [1, H, S, D] through views."""
    q, k, v = (rows.transpose(0, 1)[None] for rows in (q, k, v))
    return scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)
