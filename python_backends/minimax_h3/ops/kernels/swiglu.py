"""`silu(gate) * value` in one pass. Equals `swiglu` of `minimax_h3.ops.norm`."""

import torch
import triton
import triton.language as tl

from minimax_h3.ops.kernels.modulate import _round

BLOCK, NUM_WARPS = 2048, 4


@triton.jit
def _swiglu(gate_value_ptr, out_ptr, stride, width, EXACT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    source = gate_value_ptr + row * stride + columns
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(source + width, mask=inside, other=0.0).to(tl.float32)
    activated = gate / (1.0 + tl.exp(-gate))
    if EXACT:
        activated = _round(activated, gate_value_ptr)
    out = (activated * value).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * width + columns, out, mask=inside)


def swiglu(gate_value: torch.Tensor, *, exact: bool) -> torch.Tensor:
    """See `minimax_h3.ops.norm.swiglu`.

    Args:
        gate_value: [S, 2 * width], dense rows.
        exact: round after the activation.
    """
    rows, width = gate_value.shape[0], gate_value.shape[1] // 2
    assert gate_value.stride(1) == 1
    out = gate_value.new_empty(rows, width)
    _swiglu[(rows, triton.cdiv(width, BLOCK))](
        gate_value,
        out,
        gate_value.stride(0),
        width,
        EXACT=exact,
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
        enable_fp_fusion=not exact,
    )
    return out
