import numpy as np
import pytest
import torch
from oracles.packed_rows import axis, start_times

from minimax_h3.packing.positions import (
    audio_positions,
    frame_positions,
    last_frame_time,
    latent_times,
    latent_units,
    spatial_axis,
    text_positions,
    video_positions,
    width_axis,
)


def test_latent_times_of_the_worked_example() -> None:
    times = latent_times(37, 60.0)
    expected = [60, 61.6666667, 68.3333333, 75, 81.6666667, 88.3333333, 90]
    np.testing.assert_allclose(times[:7], expected, atol=1e-6)
    assert times.dtype == torch.float64
    assert float(times[-1]) == pytest.approx(260.0)


@pytest.mark.parametrize("latent_frames", [1, 2, 5, 7, 37, 107])
def test_latent_times_equal_the_plain_sum(latent_frames: int) -> None:
    expected = [11.0 + start for start in start_times(latent_frames)[:-1]]
    assert latent_times(latent_frames, 11.0).tolist() == expected


def test_last_keyframe_sits_at_the_last_pixel_frame() -> None:
    # 5/3 units per pixel frame: frame 123 of 124 starts at 123 * 5/3.
    assert last_frame_time(37, 60.0) == pytest.approx(60 + 123 * 5 / 3, abs=1e-9)
    assert last_frame_time(37, 60.0) == 264.99999999999994


def test_last_keyframe_is_summed_pairwise() -> None:
    differing = [
        n for n in range(2, 108) if last_frame_time(n, 0.0) != start_times(n)[-1] - 5.0 / 3.0
    ]
    assert differing
    assert min(differing) >= 16


def test_spans_cover_the_frames() -> None:
    units = latent_units(37)
    assert units.sum() == pytest.approx(124 * 5 / 3)


@pytest.mark.parametrize(("height", "width"), [(48, 84), (48, 48), (84, 48), (2, 2), (6, 4)])
def test_spatial_axes_equal_the_plain_formula(height: int, width: int) -> None:
    np.testing.assert_allclose(width_axis(height, width), axis(width, height * width), atol=1e-12)
    lines = spatial_axis(height, 2, height * width)
    np.testing.assert_allclose(lines, axis(height, height * width), atol=1e-12)


def test_spatial_axes_of_the_released_canvases() -> None:
    lines, columns = spatial_axis(48, 2, 48 * 84), width_axis(48, 84)
    np.testing.assert_allclose([lines[0], lines[-1]], [3.905, 27.087], atol=5e-4)
    np.testing.assert_allclose([columns[0], columns[-1]], [-5.166, 36.158], atol=5e-4)
    np.testing.assert_allclose(width_axis(48, 48)[[0, -1]], [0, 30.6667], atol=5e-5)


def test_frame_positions_run_line_by_line() -> None:
    grid = frame_positions(4, 6)
    assert grid.shape == (6, 2)
    assert torch.equal(grid[:3, 0], grid[:1, 0].expand(3))
    assert grid[:3, 1].tolist() == width_axis(4, 6).tolist()


def test_text_counts_along_t_only() -> None:
    assert text_positions(3).tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0]]


def test_sound_sits_at_the_ends_of_the_width_axis() -> None:
    columns = width_axis(4, 6)
    positions = audio_positions(3, 5.0, columns)
    assert positions[:, 0].tolist() == [5, 6, 7, 5, 6, 7]
    assert positions[:, 1].tolist() == [0] * 6
    assert positions[:, 2].tolist() == [columns[0]] * 3 + [columns[-1]] * 3


def test_picture_and_sound_share_a_clock() -> None:
    """One second is 40 units on both: latent frame 7 starts at pixel frame 22, 22/24 s."""
    video = video_positions(latent_times(8, 0.0), 2, 2)
    assert float(video[7, 0]) == pytest.approx(22 / 24 * 40)
