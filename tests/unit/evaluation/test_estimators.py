"""The measuring tools on clips whose truth is known, after H.264 and AAC, and on spoilt clips."""

import numpy as np
import pytest

from build_engines.evaluation.accuracy import check_clip, check_reference, shares
from build_engines.evaluation.report import judge, measure_clip
from build_engines.evaluation.tones import find_clicks, find_tones, semitones
from build_engines.train_tiny import vocabulary as words
from build_engines.train_tiny.captions import caption, parse_caption
from build_engines.train_tiny.sample import render_clip
from build_engines.train_tiny.scenes import draw_scene

# Of the benchmark's set: every shape and motion, one and two objects, both canvases.
CLIPS = (0, 1, 2, 4, 7, 9)


@pytest.mark.parametrize("index", CLIPS)
def test_tools_are_right_about_rendered_clips(index: int) -> None:
    verdicts = check_clip(index)
    assert {"objects", "ground", "shape", "colour", "motion", "direction", "pitch"} <= set(verdicts)
    assert [name for name, is_right in verdicts.items() if not is_right] == []


@pytest.mark.parametrize("index", [0, 1])
def test_a_reference_is_recognised(index: int) -> None:
    assert all(check_reference(index).values())


@pytest.fixture(scope="module")
def bouncing():
    """A scene with one object that bounces sideways, its frames and its sound."""
    scenes = (draw_scene(1, i, canvas=(128, 128), num_frames=107, num_objects=1) for i in range(99))
    scene = next(s for s in scenes if s.objects[0].motion == words.BOUNCE and s.objects[0].vx > 5)
    return scene, *render_clip(scene)


def test_swapped_channels_and_late_clicks_are_seen(bouncing) -> None:
    _, frames, wave = bouncing
    seen = measure_clip(frames, wave).objects[0]
    assert seen.pan_correlation > 0.98
    assert max(abs(offset) for offset in seen.click_offsets) < 0.01
    swapped = measure_clip(frames, wave[::-1]).objects[0]
    assert swapped.pan_correlation < -0.98
    late = np.roll(wave, 1920, axis=1)
    offsets = measure_clip(frames, late).objects[0].click_offsets
    assert np.median(offsets) == pytest.approx(0.06, abs=0.003)


def test_a_wrong_caption_is_wrong_in_what_it_says(bouncing) -> None:
    scene, frames, wave = bouncing
    facts = measure_clip(frames, wave)
    text = caption(scene, plain=True)
    assert all(judge(facts, parse_caption(text)).values())
    shape, ground = words.SHAPES[scene.objects[0].shape], words.COLOUR_NAMES[scene.ground]
    other = words.SHAPES[scene.objects[0].shape - 1]
    verdicts = judge(facts, parse_caption(text.replace(shape, other)))
    assert [name for name, right in verdicts.items() if not right] == ["shape", "pitch"]
    another = "green" if ground != "green" else "white"
    verdicts = judge(facts, parse_caption(text.replace(f"{ground} ground", f"{another} ground")))
    assert [name for name, right in verdicts.items() if not right] == ["ground"]
    verdicts = judge(facts, parse_caption(f"{text} and a red star blinks"))
    assert not verdicts["objects"]
    assert not verdicts["shape"]


def test_an_empty_clip_is_no_error() -> None:
    frames = np.full((40, 64, 64, 3), 125, dtype=np.uint8)
    facts = measure_clip(frames, np.zeros((2, 50_000), dtype=np.float32))
    assert (facts.ground, facts.objects, facts.clicks) == ("grey", [], [])
    noise = np.random.default_rng(0).integers(0, 256, frames.shape, dtype=np.uint8)
    wave = np.random.default_rng(0).uniform(-1, 1, (2, 50_000)).astype(np.float32)
    measure_clip(noise, wave)


@pytest.mark.parametrize("pitch", [196.0, 311.3, 523.25, 784.0])
def test_pitch_to_a_fraction_of_a_semitone(pitch: float) -> None:
    times = np.arange(100_000) / 32_000
    wave = 0.2 * np.sin(2 * np.pi * pitch * times) + 0.05 * np.sin(4 * np.pi * pitch * times)
    tones = find_tones(np.stack((wave, wave)).astype(np.float32), 75)
    assert len(tones) == 1
    assert abs(semitones(tones[0].pitch_hz, pitch)) < 0.01
    assert np.allclose(tones[0].pan[2:-2], 0.5, atol=0.01)


def test_clicks_to_a_fraction_of_a_millisecond() -> None:
    wave = np.zeros((2, 64_000), dtype=np.float32)
    times = [0.2501, 0.9003, 1.4]
    for time in times:
        start = round(time * 32_000)
        since = np.arange(1000) / 32_000
        wave[:, start : start + 1000] += (
            0.3 * np.sin(2 * np.pi * 2500 * since) * np.exp(-since / 0.004)
        )
    assert np.allclose(find_clicks(wave), times, atol=0.0008)
    assert find_clicks(np.zeros((2, 64_000), dtype=np.float32)) == []


def test_shares_count_by_property() -> None:
    table = shares([{"a": True, "b": False}, {"a": True}])
    assert table == {"a": {"cases": 2, "right": 1.0}, "b": {"cases": 1, "right": 0.0}}
