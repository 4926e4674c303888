"""RMSNorm and rotary embedding of q and k, in place on the projected rows; v is not touched.

Equals `rms_norm` of `minimax_h3.ops.norm` followed by `rotate_` of `minimax_h3.ops.rope`.
"""

import torch
import triton
import triton.language as tl

from minimax_h3.ops.kernels.modulate import _round
from minimax_h3.ops.rope import RotaryTable

BLOCK_HEADS, NUM_WARPS = 4, 1  # the fastest of 24 pairs on an H200


@triton.jit
def _turn(
    row_ptr, weight_ptr, at, partner_at, dims, partners, inside, cos, sin, eps, EXACT: tl.constexpr
):
    """Normed and rotated heads [BLOCK_HEADS, D]; reads every value before anything is written."""
    heads = tl.load(row_ptr + at, mask=inside, other=0.0).to(tl.float32)
    others = tl.load(row_ptr + partner_at, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + dims).to(tl.float32)
    other_weight = tl.load(weight_ptr + partners).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(heads * heads, axis=1) / heads.shape[1] + eps)[:, None]
    heads = heads * inverse * weight[None, :]
    others = others * inverse * other_weight[None, :]
    if EXACT:
        heads = _round(_round(heads, row_ptr) * cos, row_ptr)
        others = _round(_round(others, row_ptr) * sin, row_ptr)
        return heads + others
    return heads * cos + others * sin


@triton.jit
def _norm_rotate(
    projected_ptr,
    q_weight_ptr,
    k_weight_ptr,
    cos_ptr,
    sin_ptr,
    row_stride,
    part_stride,
    head_stride,
    heads,
    q_eps,
    k_eps,
    HALF: tl.constexpr,
    D: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    EXACT: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    dims = tl.arange(0, D)
    turned = dims < 2 * HALF
    # A dimension that is not rotated is its own partner, with cosine 1 and sine 0.
    partners = tl.where(dims < HALF, dims + HALF, tl.where(turned, dims - HALF, dims))
    table = row * (2 * HALF) + dims
    cos = tl.load(cos_ptr + table, mask=turned, other=1.0).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + table, mask=turned, other=0.0).to(tl.float32)[None, :]
    at = head[:, None] * head_stride + dims[None, :]
    partner_at = head[:, None] * head_stride + partners[None, :]
    inside = (head < heads)[:, None]
    q_ptr = projected_ptr + row * row_stride
    k_ptr = q_ptr + part_stride
    q = _turn(
        q_ptr, q_weight_ptr, at, partner_at, dims, partners, inside, cos, sin, q_eps, EXACT=EXACT
    )
    k = _turn(
        k_ptr, k_weight_ptr, at, partner_at, dims, partners, inside, cos, sin, k_eps, EXACT=EXACT
    )
    # A partner is read by another thread: nobody writes before all have read.
    tl.debug_barrier()
    tl.store(q_ptr + at, q.to(projected_ptr.dtype.element_ty), mask=inside)
    tl.store(k_ptr + at, k.to(projected_ptr.dtype.element_ty), mask=inside)


def norm_rotate_(
    projected: torch.Tensor,
    q_norm: torch.nn.RMSNorm,
    k_norm: torch.nn.RMSNorm,
    rotary: RotaryTable | None,
    *,
    exact: bool,
) -> None:
    """Norm and rotate q and k of every row, in place.

    Args:
        projected: [S, 3, H, D], q, k and v of each row side by side, D a power of two; updated.
        q_norm: weight [D] and eps.
        k_norm: weight [D] and eps.
        rotary: cosines and sines [S, 1, 2 * HALF], dense; None to norm only.
        exact: round after every operation.
    """
    rows, _, heads, width = projected.shape
    assert projected.stride(3) == 1
    assert width == triton.next_power_of_2(width)
    half = 0 if rotary is None else rotary.cos.shape[-1] // 2
    cos, sin = (projected, projected) if rotary is None else rotary
    assert rotary is None or (cos.is_contiguous() and sin.is_contiguous())
    _norm_rotate[(rows, triton.cdiv(heads, BLOCK_HEADS))](
        projected,
        q_norm.weight,
        k_norm.weight,
        cos,
        sin,
        projected.stride(0),
        projected.stride(1),
        projected.stride(2),
        heads,
        q_norm.eps,
        k_norm.eps,
        HALF=half,
        D=width,
        BLOCK_HEADS=BLOCK_HEADS,
        EXACT=exact,
        num_warps=NUM_WARPS,
        enable_fp_fusion=not exact,
    )
