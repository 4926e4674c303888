"""cuDNN's fused attention through PyTorch: the fastest that needs nothing but PyTorch."""

from itertools import pairwise

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from minimax_h3.attention.capabilities import CAPABILITIES
from minimax_h3.core.errors import BackendUnavailableError


class CudnnAttention:
    """One call for each document, on views that end where the document ends."""

    name = "cudnn"
    capabilities = CAPABILITIES[name]

    def check(self) -> None:
        """See `AttentionBackend`."""
        if not torch.backends.cudnn.is_available():  # type: ignore[no-untyped-call]  # no types there
            raise BackendUnavailableError("this PyTorch has no cuDNN")
        if not torch.backends.cuda.cudnn_sdp_enabled():  # type: ignore[no-untyped-call]  # the same
            raise BackendUnavailableError("cuDNN attention is switched off in PyTorch")

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: tuple[int, ...]
    ) -> torch.Tensor:
        """See `AttentionBackend`."""
        assert cu_seqlens[-1] == q.shape[0]
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            if len(cu_seqlens) == 2:
                return _attend(q, k, v)
            return torch.cat([_attend(q[a:b], k[a:b], v[a:b]) for a, b in pairwise(cu_seqlens)])


def load_backend() -> CudnnAttention:
    """Registry entry."""
    return CudnnAttention()


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """One document, [S, H, D]; the kernel reads [1, H, S, D] through views."""
    if q.shape[0] == 1:  # cuDNN takes no single row, and softmax over one key is 1
        return v.clone()
    q, k, v = (rows.transpose(0, 1)[None] for rows in (q, k, v))
    return scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)
