"""Gated residual, RMSNorm and modulation in one pass over a row; one program a row.

Reads the residual stream and a branch, writes the stream and the next branch's input: four rows of
traffic instead of nineteen. Equals `gated_residual_` and `norm_modulate` of `minimax_h3.ops.norm`.
"""

import torch
import triton
import triton.language as tl

NUM_WARPS = 8


@triton.jit
def _round(values, like):
    """To the dtype behind a pointer and back, as an operation of PyTorch rounds its result."""
    return values.to(like.dtype.element_ty).to(tl.float32)


@triton.jit
def _modulate(
    hidden_ptr,
    branch_ptr,
    out_ptr,
    gate_ptr,
    weight_ptr,
    shift_ptr,
    scale_ptr,
    index_ptr,
    hidden_stride,
    branch_stride,
    table_stride,
    width,
    eps,
    GATED: tl.constexpr,
    NORMED: tl.constexpr,
    EXACT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    table_row = tl.load(index_ptr + row) * table_stride
    stream = hidden_ptr + row * hidden_stride + columns
    hidden = tl.load(stream, mask=inside, other=0.0).to(tl.float32)
    if GATED:
        branch = tl.load(branch_ptr + row * branch_stride + columns, mask=inside, other=0.0)
        gate = tl.load(gate_ptr + table_row + columns, mask=inside, other=0.0)
        gated = branch.to(tl.float32) * gate.to(tl.float32)
        if EXACT:
            gated = _round(gated, hidden_ptr)
        # The stream is stored rounded, and the norm reads what is stored.
        hidden = _round(hidden + gated, hidden_ptr)
        tl.store(stream, hidden.to(hidden_ptr.dtype.element_ty), mask=inside)
    if NORMED:
        inverse = tl.rsqrt(tl.sum(hidden * hidden, axis=0) / width + eps)
        weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
        shift = tl.load(shift_ptr + table_row + columns, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scale_ptr + table_row + columns, mask=inside, other=0.0).to(tl.float32)
        normed = hidden * inverse * weight
        scale += 1.0
        if EXACT:
            normed = _round(normed, hidden_ptr)
            scale = _round(scale, hidden_ptr)
            normed = _round(normed * scale, hidden_ptr) + shift
        else:
            normed = normed * scale + shift
        # The output may be the branch itself: each thread has read its own columns before.
        out = out_ptr + row * width + columns
        tl.store(out, normed.to(out_ptr.dtype.element_ty), mask=inside)


def modulate(
    hidden: torch.Tensor,
    index: torch.Tensor,
    *,
    branch: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    norm: torch.nn.RMSNorm | None = None,
    shift: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
    exact: bool,
) -> torch.Tensor:
    """Run the kernel with its gate, its norm, or both.

    Args:
        hidden: [S, width], dense rows; updated when there is a branch.
        index: int64 [S], rows of the tables.
        branch: [S, width]; with a norm it is overwritten by the result.
        gate: table [M, width], with `branch`.
        norm: weight [width] and eps, with `shift` and `scale`.
        shift: table [M, width].
        scale: table [M, width].
        exact: round after every operation.

    Returns:
        The normed rows [S, width] if there is a norm, else `hidden`.
    """
    rows, width = hidden.shape
    gated, normed = branch is not None, norm is not None
    branch = hidden if branch is None else branch
    assert hidden.stride(1) == branch.stride(1) == 1
    out = hidden
    if norm is not None:
        out = branch if gated and branch.is_contiguous() else hidden.new_empty(rows, width)
    tables = [hidden if table is None else table for table in (gate, shift, scale)]
    used = [table for table in (gate, shift, scale) if table is not None]
    assert all(table.stride() == (used[0].stride(0), 1) for table in used)
    _modulate[(rows,)](
        hidden,
        branch,
        out,
        tables[0],
        hidden if norm is None else norm.weight,
        tables[1],
        tables[2],
        index,
        hidden.stride(0),
        branch.stride(0),
        used[0].stride(0),
        width,
        0.0 if norm is None else norm.eps,
        GATED=gated,
        NORMED=normed,
        EXACT=exact,
        BLOCK=triton.next_power_of_2(width),
        num_warps=NUM_WARPS,
        enable_fp_fusion=not exact,
    )
    return out
