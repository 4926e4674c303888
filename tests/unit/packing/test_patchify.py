import pytest
import torch
from diffusers.modular_pipelines.minimax_h3.before_denoise import patchify_video_latents
from hypothesis import given
from hypothesis import strategies as st

from minimax_h3.packing.patchify import (
    audio_to_rows,
    rows_to_audio,
    rows_to_video,
    video_to_rows,
)

sizes = st.integers(1, 5)


@given(sizes, sizes, sizes, sizes)
def test_video_rows_are_the_reference_and_invert(
    channels: int, frames: int, lines: int, columns: int
) -> None:
    latents = torch.randn(channels, frames, 2 * lines, 2 * columns)
    rows = video_to_rows(latents)
    assert torch.equal(rows, patchify_video_latents(latents[None], (1, 2, 2)))
    assert torch.equal(rows_to_video(rows, frames, 2 * lines, 2 * columns), latents)
    assert rows.is_contiguous()


@given(sizes, st.integers(0, 5))
def test_audio_rows_invert(channels: int, latents: int) -> None:
    sound = torch.randn(2, channels, latents)
    rows = audio_to_rows(sound)
    assert rows.shape == (2 * latents, channels)
    assert torch.equal(rows_to_audio(rows), sound)


def test_a_video_row_is_channel_slowest_then_line_then_column() -> None:
    latents = torch.arange(3 * 2 * 4 * 6).reshape(3, 2, 4, 6)
    rows = video_to_rows(latents)
    for frame, line, column in ((0, 0, 0), (1, 1, 2)):
        row = rows[(frame * 2 + line) * 3 + column]
        for c in range(3):
            for dy in range(2):
                for dx in range(2):
                    cell = latents[c, frame, 2 * line + dy, 2 * column + dx]
                    assert row[4 * c + 2 * dy + dx] == cell


def test_audio_rows_are_all_left_then_all_right() -> None:
    sound = torch.arange(2 * 3 * 4).reshape(2, 3, 4)
    rows = audio_to_rows(sound)
    assert torch.equal(rows[1], sound[0, :, 1])
    assert torch.equal(rows[4 + 1], sound[1, :, 1])


@pytest.mark.parametrize("shape", [(3, 2, 5, 4), (3, 2, 4, 5)])
def test_odd_grids_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="do not divide into patches"):
        video_to_rows(torch.zeros(shape))


def test_wrong_row_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="11 rows do not fill 2x4x6"):
        rows_to_video(torch.zeros(11, 12), 2, 4, 6)
    with pytest.raises(ValueError, match="3 audio rows"):
        rows_to_audio(torch.zeros(3, 32))
    with pytest.raises(ValueError, match="1 audio channels"):
        audio_to_rows(torch.zeros(1, 32, 4))
