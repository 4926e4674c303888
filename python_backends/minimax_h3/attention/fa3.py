"""FlashAttention 3 in FlashInfer's version, compiled ahead: the fastest lossless one on Hopper."""

import ctypes
from itertools import pairwise

import torch

from minimax_h3.attention.capabilities import CAPABILITIES
from minimax_h3.attention.native import call, load_library

HEAD_DIM = 128


class Fa3Attention:
    """One launch for each document; its length bounds what is read."""

    name = "fa3"
    capabilities = CAPABILITIES[name]

    def check(self) -> None:
        """See `AttentionBackend`."""
        fa3_library()

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: tuple[int, ...]
    ) -> torch.Tensor:
        """See `AttentionBackend`."""
        assert cu_seqlens[-1] == q.shape[0]
        out = q.new_empty(q.shape)
        strides = fa3_strides(q, k, v, out)
        for a, b in pairwise(cu_seqlens):
            call(
                fa3_library(),
                "h3_fa3_bf16",
                q.device,
                *(rows[a:b] for rows in (q, k, v, out)),
                strides,
                b - a,
                q.shape[1],
                HEAD_DIM**-0.5,
            )
        return out


def fa3_library() -> ctypes.CDLL:
    """The compiled kernels, both precisions."""
    return load_library("h3_fa3", ("h3_fa3_bf16", "h3_fa3_e4m3"))


def fa3_strides(*tensors: torch.Tensor) -> tuple[int, ...]:
    """Strides of rows and heads, in elements; the tensor maps want heads in units of 16 bytes."""
    for rows in tensors:
        assert rows.stride(2) == 1
        assert rows.data_ptr() % 16 == 0
        assert all(stride * rows.element_size() % 16 == 0 for stride in rows.stride()[:2])
    return tuple(stride for rows in tensors for stride in rows.stride()[:2])


def load_backend() -> Fa3Attention:
    """Registry entry."""
    return Fa3Attention()
