"""BF16 q, k and v to e4m3 with a scale for each head, k freed of its mean first.

The mean of k over a document adds the same number to every score of a query, which softmax does not
see; without it the keys of real activations, which share large channels, keep more of e4m3's range.
Nothing waits for the device: scales stay on it.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

E4M3_MAX = 448.0
SMALLEST_SCALE = 1e-12  # of a head that is all zeros
SPLIT_ROWS, TILE_ROWS, TILE_COLUMNS = 1024, 16, 256


class Quantized(NamedTuple):
    """A document in e4m3.

    Attributes:
        packed: e4m3 [S, 3, H, D].
        scales: fp32 [3, H], what q, k and v were divided by.
    """

    packed: torch.Tensor
    scales: torch.Tensor


@triton.jit
def _column_statistics(
    packed_ptr,
    low_ptr,
    high_ptr,
    total_ptr,
    rows,
    columns,
    SPLIT_ROWS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
):
    split = tl.program_id(0)
    column = tl.program_id(1) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    low = tl.full((TILE_ROWS, TILE_COLUMNS), float("inf"), tl.float32)
    high = tl.full((TILE_ROWS, TILE_COLUMNS), float("-inf"), tl.float32)
    total = tl.zeros((TILE_ROWS, TILE_COLUMNS), tl.float32)
    for first in range(0, SPLIT_ROWS, TILE_ROWS):
        row = split * SPLIT_ROWS + first + tl.arange(0, TILE_ROWS)
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        at = row.to(tl.int64)[:, None] * columns + column[None, :]
        values = tl.load(packed_ptr + at, mask=inside, other=0.0).to(tl.float32)
        low = tl.minimum(low, tl.where(inside, values, float("inf")))
        high = tl.maximum(high, tl.where(inside, values, float("-inf")))
        total += values
    out = split.to(tl.int64) * columns + column
    tl.store(low_ptr + out, tl.min(low, axis=0), mask=column < columns)
    tl.store(high_ptr + out, tl.max(high, axis=0), mask=column < columns)
    tl.store(total_ptr + out, tl.sum(total, axis=0), mask=column < columns)


@triton.jit
def _quantize(
    packed_ptr,
    out_ptr,
    shift_ptr,
    scale_ptr,
    rows,
    columns,
    D: tl.constexpr,
    LARGEST: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
):
    row = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    column = tl.program_id(1) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    here = column < columns
    inside = (row < rows)[:, None] & here[None, :]
    shift = tl.load(shift_ptr + column, mask=here, other=0.0)
    inverse = 1.0 / tl.load(scale_ptr + column // D, mask=here, other=1.0)
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    values = tl.load(packed_ptr + at, mask=inside, other=0.0).to(tl.float32)
    values = (values - shift[None, :]) * inverse[None, :]
    values = tl.minimum(tl.maximum(values, -LARGEST), LARGEST)
    tl.store(out_ptr + at, values.to(out_ptr.dtype.element_ty), mask=inside)


def quantize(packed: torch.Tensor, *, per_head: bool = True) -> Quantized:
    """Quantize one document.

    Args:
        packed: BF16 [S, 3, H, D], dense.
        per_head: a scale for each head; otherwise one each for all of q, k and v.
    """
    rows, parts, heads, width = packed.shape
    assert packed.is_contiguous()
    columns = parts * heads * width
    splits = triton.cdiv(rows, SPLIT_ROWS)
    statistics = packed.new_empty((3, splits, columns), dtype=torch.float32)
    column_tiles = triton.cdiv(columns, TILE_COLUMNS)
    _column_statistics[(splits, column_tiles)](
        packed,
        *statistics.unbind(0),
        rows,
        columns,
        SPLIT_ROWS=SPLIT_ROWS,
        TILE_ROWS=TILE_ROWS,
        TILE_COLUMNS=TILE_COLUMNS,
    )
    shift, scales = _shift_and_scales(statistics, packed.shape, per_head)
    out = torch.empty_like(packed, dtype=torch.float8_e4m3fn)
    _quantize[(triton.cdiv(rows, TILE_ROWS), column_tiles)](
        packed,
        out,
        shift,
        scales,
        rows,
        columns,
        D=width,
        LARGEST=E4M3_MAX,
        TILE_ROWS=TILE_ROWS,
        TILE_COLUMNS=TILE_COLUMNS,
    )
    return Quantized(out, scales)


def _shift_and_scales(
    statistics: torch.Tensor, shape: torch.Size, per_head: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """What to subtract from each column, fp32 [3, H, D], and what to divide by, [3, H]."""
    rows, *columns = shape
    low = statistics[0].amin(0).view(columns)
    high = statistics[1].amax(0).view(columns)
    shift = torch.zeros_like(low)
    shift[1] = statistics[2].view(-1, *columns)[:, 1].sum(0) / rows
    largest = torch.maximum(high - shift, shift - low).amax(-1)
    if not per_head:
        largest = largest.amax(-1, keepdim=True).expand_as(largest)
    return shift, (largest / E4M3_MAX).clamp_min(SMALLEST_SCALE).contiguous()
