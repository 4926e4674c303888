import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minimax_h3.vae.tiling import RELEASED_TILES, TileRule, axis_tiles, blend, stitch

SPATIAL_STEP = 16


@pytest.mark.parametrize(
    ("length", "starts"),
    [
        (32, (0,)),
        (256, (0,)),
        (272, (0, 16)),
        (448, (0, 192)),
        (480, (0, 112, 224)),
        (768, (0, 160, 336, 512)),
        (1344, (0, 176, 352, 528, 704, 896, 1088)),
    ],
)
def test_released_tile_starts(length, starts):
    assert axis_tiles(length, SPATIAL_STEP).starts == starts


def test_a_released_canvas_has_28_tiles_of_16_by_16_latents():
    rows, columns = axis_tiles(768, SPATIAL_STEP), axis_tiles(1344, SPATIAL_STEP)
    assert len(rows) * len(columns) == 28
    assert [rows.overlap_before(k) for k in range(4)] == [0, 96, 80, 80]
    assert [columns.overlap_before(k) for k in range(7)] == [0, 80, 80, 80, 80, 64, 64]
    assert {cells.stop - cells.start for cells in map(rows.latents, range(4), [16] * 4)} == {16}


def test_tile_starts_equal_diffusers_at_every_length(vae16):
    for length in range(SPATIAL_STEP, 8192 + SPATIAL_STEP, SPATIAL_STEP):
        tiles = axis_tiles(length, SPATIAL_STEP)
        starts, sizes, overlaps = vae16._split_tiles(length, 256, 64)
        assert list(tiles.starts) == starts
        assert [tiles.size] * len(tiles) == sizes
        assert [tiles.overlap_before(k) for k in range(1, len(tiles))] == overlaps


@given(cells=st.integers(1, 300))
def test_tiles_own_every_pixel_once_and_keep_the_overlap(cells):
    length = cells * SPATIAL_STEP
    tiles = axis_tiles(length, SPATIAL_STEP)
    owned = [pixel for k in range(len(tiles)) for pixel in range(*tiles.owned(k).indices(length))]
    assert owned == list(range(length))
    assert tiles.starts[-1] + tiles.size == length
    joints = range(1, len(tiles))
    assert all(tiles.overlap_before(k) >= RELEASED_TILES.min_overlap_pixels for k in joints)
    assert all(start % SPATIAL_STEP == 0 for start in tiles.starts)


@pytest.mark.parametrize(
    ("length", "rule"),
    [
        (0, RELEASED_TILES),
        (100, RELEASED_TILES),
        (512, TileRule(250, 64)),
        (512, TileRule(256, 60)),
        (512, TileRule(256, 256)),
    ],
)
def test_unaligned_lengths_and_rules_are_refused(length, rule):
    with pytest.raises(ValueError, match="multiples of 16"):
        axis_tiles(length, SPATIAL_STEP, rule)


def test_blend_is_a_linear_fade_of_the_neighbours_end():
    before, after = torch.full((1, 6), 10.0), torch.full((1, 5), 2.0)
    faded = blend(before, after, 4, dim=-1)
    assert faded.tolist() == [[10.0, 8.0, 6.0, 4.0, 2.0]]
    assert after.tolist() == [[2.0] * 5], "the tile itself stays raw for the next one"


@pytest.mark.parametrize(("height", "width"), [(64, 48), (32, 80), (80, 112), (104, 56)])
def test_stitching_is_bitwise_the_diffusers_stitching(vae4, height, width):
    rule = TileRule(32, 8)
    rows, columns = axis_tiles(height, 4, rule), axis_tiles(width, 4, rule)
    generator = torch.Generator().manual_seed(height)
    tiles = [
        [torch.randn(1, 3, 2, rows.size, columns.size, generator=generator) for _ in columns.starts]
        for _ in rows.starts
    ]
    overlaps = [[axis.overlap_before(k) for k in range(1, len(axis))] for axis in (rows, columns)]
    assert torch.equal(stitch(tiles, rows, columns), vae4._stitch_tiles(tiles, *overlaps))


@settings(max_examples=25)
@given(rows=st.integers(8, 40), columns=st.integers(8, 40))
def test_whatever_is_cut_into_tiles_is_stitched_back(rows, columns):
    """Tiles that agree where they overlap give the picture they were cut from."""
    rule = TileRule(32, 8)
    axes = axis_tiles(4 * rows, 4, rule), axis_tiles(4 * columns, 4, rule)
    whole = torch.arange(16.0 * rows * columns).reshape(1, 4 * rows, 4 * columns)
    tiles = [
        [whole[:, top : top + axes[0].size, left : left + axes[1].size] for left in axes[1].starts]
        for top in axes[0].starts
    ]
    torch.testing.assert_close(stitch(tiles, *axes), whole, rtol=1e-6, atol=0)


def test_half_precision_tiles_are_blended_in_fp32():
    axis = axis_tiles(48, 4, TileRule(32, 8))
    tiles = [[torch.full((1, 32, 32), 1.0, dtype=torch.bfloat16) for _ in axis.starts]]
    row = axis_tiles(32, 4, TileRule(32, 8))
    joined = stitch(tiles, row, axis)
    assert joined.dtype == torch.float32
    assert torch.equal(joined, torch.ones(1, 32, 48))
