"""TensorRT-LLM's FMHA v2 in FlashInfer's version, compiled ahead for Hopper."""

import ctypes
from functools import lru_cache
from itertools import pairwise

import torch

from minimax_h3.attention.capabilities import CAPABILITIES
from minimax_h3.attention.native import call, load_library
from minimax_h3.attention.side_by_side import side_by_side

HEAD_DIM = 128


class TrtllmAttention:
    """One launch for each document; its length bounds what is read."""

    name = "trtllm"
    capabilities = CAPABILITIES[name]

    def check(self) -> None:
        """See `AttentionBackend`."""
        trtllm_library()

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: tuple[int, ...]
    ) -> torch.Tensor:
        """See `AttentionBackend`."""
        return attend_packed(side_by_side(q, k, v), cu_seqlens)


def attend_packed(
    packed: torch.Tensor, cu_seqlens: tuple[int, ...], qk_factor: torch.Tensor | None = None
) -> torch.Tensor:
    """Attend to rows that hold q, k and v side by side.

    Args:
        packed: [S, 3, H, 128], dense, BF16 or e4m3.
        cu_seqlens: document bounds.
        qk_factor: fp32 [documents] on the device, in place of `log2(e) / sqrt(128)`.

    Returns:
        BF16 [S, H, 128].
    """
    assert packed.is_contiguous()
    assert cu_seqlens[-1] == packed.shape[0]
    out = packed.new_empty((packed.shape[0], *packed.shape[2:]), dtype=torch.bfloat16)
    counter = packed.new_empty(1, dtype=torch.int32)
    lengths = _device_lengths(cu_seqlens, packed.device)
    for number, (a, b) in enumerate(pairwise(cu_seqlens)):
        call(
            trtllm_library(),
            "h3_trtllm",
            packed.device,
            packed[a:b],
            out[a:b],
            b - a,
            packed.shape[2],
            HEAD_DIM**-0.5,
            None if qk_factor is None else qk_factor[number],
            lengths[number],
            counter,
            int(packed.dtype != torch.bfloat16),
        )
    return out


def trtllm_library() -> ctypes.CDLL:
    """The compiled kernels, both precisions."""
    return load_library("h3_trtllm", ("h3_trtllm",))


@lru_cache(maxsize=8)
def _device_lengths(cu_seqlens: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """int32 [documents, 2]: 0 and the length; filled on the device, so that nothing waits."""
    lengths = torch.zeros(len(cu_seqlens) - 1, 2, dtype=torch.int32, device=device)
    for row, (a, b) in zip(lengths, pairwise(cu_seqlens), strict=True):
        row[1].fill_(b - a)
    return lengths


def load_backend() -> TrtllmAttention:
    """Registry entry."""
    return TrtllmAttention()
