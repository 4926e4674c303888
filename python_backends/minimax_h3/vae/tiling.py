"""Spatial tiles of one clip: where they start and how their overlaps are blended.

The tile geometry belongs to the released look: the decoder's rotary coordinates count over one
tile, so another tile size, or none, gives another picture. There is no option to change it. The
encoder cuts the same tiles out of pixels and blends in latent cells.

Source: model sheet section 4.1, "Spatial tiles".
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

TILE_PIXELS = 256
MIN_OVERLAP_PIXELS = 64


@dataclass(frozen=True, slots=True)
class TileRule:
    """Tile size and smallest overlap, in pixels; the released rule unless a test shrinks it."""

    tile_pixels: int = TILE_PIXELS
    min_overlap_pixels: int = MIN_OVERLAP_PIXELS


RELEASED_TILES = TileRule()


@dataclass(frozen=True, slots=True)
class AxisTiles:
    """Tiles along one axis.

    Attributes:
        length: pixels covered.
        size: pixels of every tile.
        starts: first pixel of each tile.
    """

    length: int
    size: int
    starts: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.starts)

    def overlap_before(self, index: int) -> int:
        """Pixels that tile `index` shares with the tile before it; 0 for the first."""
        return self.starts[index - 1] + self.size - self.starts[index] if index else 0

    def owned(self, index: int) -> slice:
        """Pixels that tile `index` writes: from its start to the start of the next tile."""
        last = index == len(self.starts) - 1
        return slice(self.starts[index], self.length if last else self.starts[index + 1])

    def pixels(self, index: int) -> slice:
        """Pixels under tile `index`."""
        return slice(self.starts[index], self.starts[index] + self.size)

    def in_latents(self, step: int) -> "AxisTiles":
        """The same tiles counted in latent cells of `step` pixels."""
        starts = tuple(start // step for start in self.starts)
        return AxisTiles(self.length // step, self.size // step, starts)

    def latents(self, index: int, step: int) -> slice:
        """Latent cells under tile `index`, at `step` pixels a cell."""
        return slice(self.starts[index] // step, (self.starts[index] + self.size) // step)


def axis_tiles(length: int, step: int, rule: TileRule = RELEASED_TILES) -> AxisTiles:
    """Lay the fewest tiles over `length` pixels that keep every overlap at the minimum or above.

    The slack widens the overlaps in turn, `step` pixels at a time, first overlap first. 768 gives
    starts 0, 160, 336, 512.

    Args:
        length: pixels of the axis, a multiple of `step`.
        step: pixels of one latent cell.
        rule: tile size and smallest overlap.

    Raises:
        ValueError: a length or rule that is not aligned to latent cells.
    """
    tile, overlap = rule.tile_pixels, rule.min_overlap_pixels
    if length <= 0 or length % step or tile % step or overlap % step or overlap >= tile:
        raise ValueError(
            f"length {length}, tile {tile} and overlap {overlap} must be multiples of {step} "
            "with overlap below tile"
        )
    if tile >= length:
        return AxisTiles(length, length, (0,))
    advance = tile - overlap
    joints = -(-(length - tile) // advance)
    slack_steps = (tile + joints * advance - length) // step
    rounds, extra = divmod(slack_steps, joints)
    starts = [0]
    for joint in range(joints):
        starts.append(starts[-1] + advance - step * (rounds + (joint < extra)))
    return AxisTiles(length, tile, tuple(starts))


def blend(before: Tensor, after: Tensor, extent: int, dim: int) -> Tensor:
    """Fade the end of `before` into the start of `after` along `dim`.

    Element k of the first `extent` ones becomes `before * (1 - k / extent) + after * (k / extent)`.

    Args:
        before: raw neighbour, fp32; its last `extent` elements are used.
        after: fp32; not written to.
        extent: shared elements; clipped to both lengths.
        dim: axis of the fade.

    Returns:
        A tensor of the shape of `after`.
    """
    extent = min(extent, before.shape[dim], after.shape[dim])
    shape = [1] * after.ndim
    shape[dim] = extent
    rising = (torch.arange(extent, device=after.device, dtype=after.dtype) / extent).view(shape)
    blended = after.clone()
    tail = before.narrow(dim, before.shape[dim] - extent, extent)
    head = after.narrow(dim, 0, extent)
    blended.narrow(dim, 0, extent).copy_(tail * (1 - rising) + head * rising)
    return blended


def stitch(tiles: Sequence[Sequence[Tensor]], rows: AxisTiles, columns: AxisTiles) -> Tensor:
    """Join raw tiles: fade vertically first, then horizontally, each against the raw neighbour.

    Args:
        tiles: `tiles[i][j]` of shape [..., rows.size, columns.size].
        rows: tiles along the height.
        columns: tiles along the width.

    Returns:
        fp32 [..., rows.length, columns.length] on the tiles' device.
    """
    first = tiles[0][0]
    shape = (*first.shape[:-2], rows.length, columns.length)
    canvas = torch.empty(shape, dtype=torch.float32, device=first.device)
    for i, row in enumerate(tiles):
        down = rows.owned(i)
        for j, raw in enumerate(row):
            across = columns.owned(j)
            piece = raw.float()
            if i:
                piece = blend(tiles[i - 1][j].float(), piece, rows.overlap_before(i), dim=-2)
            if j:
                piece = blend(row[j - 1].float(), piece, columns.overlap_before(j), dim=-1)
            height, width = down.stop - down.start, across.stop - across.start
            canvas[..., down, across] = piece[..., :height, :width]
    return canvas
