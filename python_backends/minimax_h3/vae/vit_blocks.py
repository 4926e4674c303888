"""The video decoder's transformer blocks with fewer passes over memory.

A block of diffusers runs some thirty small operations between its six matrix products. Here q, k
and v are one product, and what lies between the products is four functions: each is one kernel once
it is compiled. Arithmetic is FP32 with one rounding at the end of each function, where diffusers
rounds after every operation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu


def normed(stream: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """RMS norm of the FP32 stream, rounded once."""
    return rms_norm(stream, weight.shape, weight, eps).to(dtype)


def heads(qkv: Tensor, cosines: Tensor, sines: Tensor, count: int, eps: float) -> Tensor:
    """Norm and rotate q and k, lay all three out by head.

    Args:
        qkv: [B, N, 3 * count * D].
        cosines: FP32 [N, R]; the first R of D values rotate, in two halves.
        sines: likewise.
        count: heads.
        eps: of the norms, which have no weight.

    Returns:
        [3, B, count, N, D].
    """
    batch, rows = qkv.shape[:2]
    split = qkv.view(batch, rows, 3, count, -1).permute(2, 0, 3, 1, 4)
    both = split[:2].float()
    both = both * torch.rsqrt(both.square().mean(-1, keepdim=True) + eps)
    rotated = cosines.shape[-1]
    first, second = both[..., : rotated // 2], both[..., rotated // 2 : rotated]
    turned = torch.cat((-second, first), -1)
    front = both[..., :rotated] * cosines + turned * sines
    both = torch.cat((front, both[..., rotated:]), -1).to(qkv.dtype)
    return torch.cat((both, split[2:]))


def gated(inner: Tensor) -> Tensor:
    """SwiGLU: the first half of the values, weighed by the SiLU of the second."""
    value, gate = inner.float().chunk(2, -1)
    return (value * silu(gate)).to(inner.dtype)


def added(stream: Tensor, branch: Tensor, scale: Tensor) -> Tensor:
    """The FP32 stream plus a scaled branch."""
    return torch.addcmul(stream, branch.float(), scale)


@dataclass(frozen=True, slots=True)
class VitOps:
    """What computes everything between matrix products and attention."""

    normed: Callable[..., Tensor] = normed
    heads: Callable[..., Tensor] = heads
    gated: Callable[..., Tensor] = gated
    added: Callable[..., Tensor] = added


PLAIN = VitOps()


def compiled_ops() -> VitOps:
    """The same functions as one kernel each; the first call of a shape compiles for seconds."""
    # Compiled in this process: a model's interpreter is embedded and starts no helpers.
    inductor: Any = torch._inductor.config
    inductor.compile_threads = 1
    return VitOps(*(_compiled(each) for each in (normed, heads, gated, added)))


def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    compiled: Callable[..., Tensor] = torch.compile(function, dynamic=False, fullgraph=True)
    return compiled


class VitBlock(nn.Module):
    """One block, with the weights of a block of diffusers.

    Args:
        block: `MiniMaxH3VideoTransformerBlock`, loaded; its q, k and v are joined and given up.
        ops: what computes between the products.
    """

    def __init__(self, block: Any, ops: VitOps = PLAIN) -> None:
        super().__init__()
        attention, feed_forward = block.attn, block.ff
        self._ops = ops
        self._heads, self._norm_eps = int(attention.heads), float(block.norm1.eps)
        self._qk_eps = float(attention.norm_q.eps)
        roles = (attention.to_q, attention.to_k, attention.to_v)
        self.qkv_weight = _frozen(torch.cat([role.weight for role in roles]))
        self.qkv_bias = _frozen(torch.cat([role.bias for role in roles]))
        del attention.to_q, attention.to_k, attention.to_v
        self.norm1, self.norm2 = _frozen(block.norm1.weight), _frozen(block.norm2.weight)
        self.scale1, self.scale2 = _frozen(block.scale1), _frozen(block.scale2)
        self.out, self.inner, self.outer = (
            attention.to_out[0],
            feed_forward.net[0].proj,
            feed_forward.net[2],
        )

    def forward(self, stream: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """One block.

        Args:
            stream: [B, N, width]; FP32 from the first block's end on.
            rotary: FP32 cosines and sines [1 or B, N, 1, R], the same for every tile.
        """
        ops, dtype = self._ops, self.qkv_weight.dtype
        cosines, sines = (each[0, :, 0] for each in rotary)
        stream = stream.float()
        normed_rows = ops.normed(stream, self.norm1, self._norm_eps, dtype)
        joined = linear(normed_rows, self.qkv_weight, self.qkv_bias)
        query, key, value = ops.heads(joined, cosines, sines, self._heads, self._qk_eps)
        attended = scaled_dot_product_attention(query, key, value)
        stream = ops.added(stream, self.out(attended.transpose(1, 2).flatten(2)), self.scale1)
        normed_rows = ops.normed(stream, self.norm2, self._norm_eps, dtype)
        branch = self.outer(ops.gated(self.inner(normed_rows)))
        return ops.added(stream, branch, self.scale2)


def replace_blocks_(decoder: Any, ops: VitOps) -> None:
    """Exchange all blocks of a loaded `MiniMaxH3VideoViTDecoder3d`, one after another."""
    blocks = decoder.transformer_blocks
    for index, block in enumerate(blocks):
        blocks[index] = VitBlock(block, ops)


def _frozen(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values.detach(), requires_grad=False)
