"""Frames, latents, rows and samples against the published tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimax_h3.core import lengths

# requested frames -> aligned frames, as the peers' own tests assert
ALIGNED = {1: 5, 5: 5, 6: 22, 22: 22, 96: 107, 120: 124, 209: 209, 345: 345, 346: 362, 360: 362}
# frames -> (latent frames, audio latents, samples)
TABLE = {
    107: (32, 178, 142_400),
    124: (37, 207, 165_600),
    141: (42, 235, 188_000),
    209: (62, 348, 278_400),
    243: (72, 405, 324_000),
    345: (102, 575, 460_000),
    362: (107, 603, 482_400),
}


@pytest.mark.parametrize(("requested", "aligned"), ALIGNED.items())
def test_frames_align_up(requested: int, aligned: int) -> None:
    assert lengths.align_frames_up(requested) == aligned


@pytest.mark.parametrize(("frames", "expected"), TABLE.items())
def test_published_lengths(frames: int, expected: tuple[int, int, int]) -> None:
    audio = lengths.audio_latents_from_frames(frames)
    assert (
        lengths.latents_from_frames(frames),
        audio,
        lengths.audio_samples_from_latents(audio),
    ) == expected


@pytest.mark.parametrize(("seconds", "frames"), [(4.0, 107), (5.0, 124), (8.7, 209), (15.0, 362)])
def test_seconds(seconds: float, frames: int) -> None:
    assert lengths.frames_from_seconds(seconds) == frames


@given(st.integers(1, 5000))
def test_alignment_is_the_smallest_valid_count(frames: int) -> None:
    aligned = lengths.align_frames_up(frames)
    assert aligned >= frames
    assert aligned % 17 == 5
    assert aligned - frames < 17
    assert lengths.frames_from_latents(lengths.latents_from_frames(aligned)) == aligned


def test_every_legal_length_is_the_smallest_grid_point_above_it() -> None:
    """All requests there are, against a search: 4 to 15 s in hundredths, and every frame count."""
    grid = range(5, 1000, 17)
    for frames in range(1, 363):
        assert lengths.align_frames_up(frames) == min(one for one in grid if one >= frames)
    for hundredths in range(400, 1501):
        wanted = round(hundredths / 100 * 24)
        made = lengths.frames_from_seconds(hundredths / 100)
        assert made == min(one for one in grid if one >= wanted)


@given(st.integers(0, 2000))
def test_picture_and_sound_of_any_length_go_together(clips: int) -> None:
    frames = 17 * clips + 5
    latents, sound = lengths.latents_from_frames(frames), lengths.audio_latents_from_frames(frames)
    assert latents == 5 * clips + 2
    assert abs(sound / 40 - frames / 24) <= 1 / 80  # half a latent: the nearest one
    assert lengths.audio_samples_from_latents(sound) == sound * 800
    assert lengths.audio_rows(frames) == 2 * sound
    assert lengths.video_rows(64, 96, frames) == latents * 6


@pytest.mark.parametrize("frames", [4, 6, 120, 346])
def test_off_grid_frames_are_refused(frames: int) -> None:
    with pytest.raises(ValueError, match=f"17 n \\+ 5, got {frames}"):
        lengths.latents_from_frames(frames)
    with pytest.raises(ValueError, match="5 n \\+ 2, got 8"):
        lengths.frames_from_latents(8)


def test_rows_of_the_worked_example() -> None:
    assert lengths.rows_per_frame(1344, 768) == 1008
    assert lengths.video_rows(1344, 768, 124) == 37_296
    assert lengths.audio_rows(124) == 414


def test_picture_and_sound_end_within_one_120th() -> None:
    for frames in TABLE:
        audio_s = lengths.audio_latents_from_frames(frames) / 40
        assert abs(audio_s - frames / 24) <= 1 / 120 + 1e-9
        assert lengths.media_seconds(frames) == max(audio_s, frames / 24)
