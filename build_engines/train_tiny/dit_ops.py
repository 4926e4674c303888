"""What a training step computes between matrix products, in few passes over memory.

Norms, modulation, gates, rotation and SwiGLU are four functions of a batch of rows: each is one
kernel forward and a few backward once it is compiled. Arithmetic is FP32 with one rounding at the
end of each function. Rows look their modulation up by number; the gradient of a table is a product
with one-hot rows, which needs no atomics.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

Heads: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values, each [B, S, H, D]."""


class Bounds(NamedTuple):
    """Which rows of a batch attend to each other: in every document the first ones.

    Attributes:
        held: bool [B, S]; False for the fill behind a document.
        ends: int32 [2 B + 1], where documents and their fills end, counted through the batch.
    """

    held: Tensor
    ends: Tensor

    @classmethod
    def of(cls, held: Tensor) -> "Bounds":
        """Bounds of documents whose rows come first, bool [B, S]."""
        batch, rows = held.shape
        starts = torch.arange(batch + 1, device=held.device) * rows
        inner = torch.stack((starts[:-1], starts[:-1] + held.sum(dim=1)), dim=1).flatten()
        return cls(held, torch.cat((inner, starts[-1:])).int())


class _LookedUp(torch.autograd.Function):
    """`looked_up`, with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, lookup: Tensor) -> Tensor:
        ctx.save_for_backward(lookup)
        ctx.count = table.shape[1]
        # Indexed, not gathered: the compiler then looks up again backward instead of storing rows.
        return table[torch.arange(len(table), device=lookup.device)[:, None], lookup]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (lookup,), (gradient,) = ctx.saved_tensors, gradients
        # Rows lie closest together, so that the product's operands begin where its kernels like.
        chosen = lookup[:, None] == torch.arange(ctx.count, device=lookup.device)[:, None]
        return torch.bmm(chosen.to(gradient.dtype), gradient), None


def looked_up(table: Tensor, lookup: Tensor, parts: int) -> tuple[Tensor, ...]:
    """Rows of a table for each document: [B, K, P C] at int64 [B, S], to fp32 [B, S, C] P times."""
    found: Tensor = _LookedUp.apply(table, lookup)  # type: ignore[no-untyped-call]  # torch's own
    # Parted first, so that gradients are rounded where they are made, and joined without a pass.
    return tuple(part.float() for part in found.chunk(parts, dim=-1))


def rms(values: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm over the last dimension, in FP32."""
    return rms_norm(values.float(), weight.shape, weight, eps)


def modulated(
    hidden: Tensor, lookup: Tensor, table: Tensor, weight: Tensor, eps: float, dtype: torch.dtype
) -> Tensor:
    """Norm and modulate.

    Args:
        hidden: fp32 [B, S, C].
        lookup: int64 [B, S], rows of the table.
        table: [B, K, 2 C], shift and scale.
        weight: [C], of the norm.
        eps: likewise.
        dtype: of the result.
    """
    shift, scale = looked_up(table, lookup, 2)
    normed = rms(hidden, weight, eps)
    return (normed + normed * scale + shift).to(dtype)


def advanced(
    hidden: Tensor,
    branch: Tensor,
    lookup: Tensor,
    table: Tensor,
    weight: Tensor,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Add a gated branch to the stream; norm and modulate the sum for the next branch.

    Args:
        hidden: fp32 [B, S, C].
        branch: [B, S, C].
        lookup: int64 [B, S], rows of the table.
        table: [B, K, 3 C]: gate of the branch, shift and scale behind the norm.
        weight: [C], of the norm.
        eps: likewise.
        dtype: of the second result.

    Returns:
        The stream, and what the next branch reads.
    """
    gate, shift, scale = looked_up(table, lookup, 3)
    hidden = hidden + gate * branch.float()
    normed = rms(hidden, weight, eps)
    return hidden, (normed + normed * scale + shift).to(dtype)


def heads(
    qkv: Tensor, cosines: Tensor, sines: Tensor, query: Tensor, key: Tensor, eps: float
) -> Heads:
    """Norm and rotate queries and keys; all three come out dense.

    Args:
        qkv: [B, S, 3 H D].
        cosines: fp32 [B, S, 1, R]; the first R of D values rotate, in two halves.
        sines: likewise; the first half is negated.
        query: [D], weight of the queries' norm.
        key: [D], of the keys'.
        eps: of both norms.
    """
    q, k, v = qkv.view(*qkv.shape[:2], 3, -1, query.shape[0]).unbind(2)
    q, k = rms(q, query, eps), rms(k, key, eps)
    q, k = (_turned(each, cosines, sines).to(qkv.dtype) for each in (q, k))
    return q, k, v.clone(memory_format=torch.contiguous_format)


def _turned(rows: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    width = cosines.shape[-1]
    first, second = rows[..., :width].chunk(2, dim=-1)
    front = rows[..., :width] * cosines + torch.cat((second, first), dim=-1) * sines
    return torch.cat((front, rows[..., width:]), dim=-1)


def swiglu(inner: Tensor) -> Tensor:
    """The second half of the values, weighed by the SiLU of the first."""
    gate, value = (half.float() for half in inner.chunk(2, dim=-1))
    return (silu(gate) * value).to(inner.dtype)


def masked(query: Tensor, key: Tensor, value: Tensor, bounds: Bounds) -> Tensor:
    """Attention that hides the fill behind a mask, [B, S, H, D]."""
    query, key, value = (each.transpose(1, 2) for each in (query, key, value))
    mask = bounds.held[:, None, None]
    return scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2)


def bounded(query: Tensor, key: Tensor, value: Tensor, bounds: Bounds) -> Tensor:
    """The same by the flash kernels, which know no masks: a fill is a document of its own."""
    from torch.nn.attention.varlen import varlen_attn  # torch 2.10 and later have it

    rows = query.shape[1]
    query, key, value = (each.flatten(0, 1) for each in (query, key, value))
    out: Any = varlen_attn(query, key, value, bounds.ends, bounds.ends, rows, rows)
    return out.unflatten(0, (-1, rows))


@dataclass(frozen=True, slots=True)
class DitOps:
    """What computes everything between matrix products.

    Attributes:
        compiled: whether the functions are kernels of the compiler.
    """

    modulated: Callable[..., Tensor] = modulated
    advanced: Callable[..., tuple[Tensor, Tensor]] = advanced
    heads: Callable[..., Heads] = heads
    swiglu: Callable[..., Tensor] = swiglu
    attention: Callable[..., Tensor] = masked
    compiled: bool = False


PLAIN = DitOps()


def compiled_ops(backend: str | Callable[..., Any] = "inductor") -> DitOps:
    """The same functions as few kernels; the first call of each compiles for seconds.

    Rows are of any number, so that all kinds of documents share the kernels.

    Args:
        backend: of `torch.compile`.
    """
    return DitOps(
        modulated=_compiled(modulated, backend, by_row=(0, 1)),
        advanced=_compiled(advanced, backend, by_row=(0, 1, 2)),
        heads=_compiled(heads, backend, by_row=(0, 1, 2)),
        swiglu=_compiled(swiglu, backend, by_row=(0,)),
        attention=bounded,
        compiled=True,
    )


def _compiled(
    function: Callable[..., Any], backend: str | Callable[..., Any], by_row: tuple[int, ...]
) -> Callable[..., Any]:
    """Compile a function whose arguments at some places are [B, S, ...], for any S."""
    compiled = torch.compile(function, fullgraph=True, backend=backend)

    def run(*arguments: Any) -> Any:
        for place in by_row:
            torch._dynamo.maybe_mark_dynamic(arguments[place], 1)
        return compiled(*arguments)

    return run
