"""Sound against the scene that makes it, by plain Fourier sums and sample counts."""

import math

import numpy as np
import pytest
import torch

from build_engines.train_tiny import vocabulary as words
from build_engines.train_tiny.scenes import Scene, SceneObject, to_tensors
from build_engines.train_tiny.sound import render_sound

RATE = 32_000


def scene_of(**motion: float) -> Scene:
    thing = SceneObject(0, 0, 1, words.DRIFT, "right", "slow", 440.0, (1.0, 0.0, 0.0), **motion)
    return Scene(128, 128, 48, 5, (0.0, 0.0, 1.0), [thing])


def sound_of(scene: Scene, samples: int = RATE, first_s: float = 0.0) -> np.ndarray:
    return render_sound(to_tensors([scene], [first_s]), 128, 128, samples)[0].numpy()


def amplitude(wave: np.ndarray, pitch: float) -> np.ndarray:
    """By the definition of a Fourier coefficient, of both channels."""
    carrier = np.exp(-2j * np.pi * pitch * np.arange(wave.shape[1]) / RATE)
    return 2 * np.abs((wave * carrier).mean(1))


@pytest.mark.parametrize("x", [16.0, 64.0, 112.0])
@pytest.mark.parametrize("radius", [10.0, 26.0])
def test_level_follows_the_size_and_pan_the_place(x: float, radius: float) -> None:
    left, right = amplitude(sound_of(scene_of(px=x, py=64, r0=radius)), 440.0)
    assert math.hypot(left, right) == pytest.approx(words.TONE_LEVEL * radius / 26, rel=1e-3)
    assert math.atan2(right, left) / (math.pi / 2) == pytest.approx(x / 128, abs=1e-3)


def test_a_click_starts_at_each_bounce_and_nowhere_else() -> None:
    silent = scene_of(px=64, py=100, r0=15)
    bouncing = scene_of(px=64, py=100, r0=15, hop=40, start=0.3, period=0.5)
    clicks = np.abs(sound_of(bouncing) - sound_of(silent)).max(0)
    starts = [round(t * RATE) for t in bouncing.objects[0].bounce_times(1.0)]
    assert len(starts) == 2
    assert clicks[: starts[0]].max() == 0
    for start in starts:
        assert clicks[start : start + 12].max() > 0.1
        assert clicks[start - 1000 : start].max() < 1e-3
        assert clicks[start + 1600 :][:100].max() < 1e-4


def test_a_blink_is_silent_while_dark() -> None:
    wave = np.abs(sound_of(scene_of(px=64, py=64, r0=15, period=0.5, duty=0.5)))
    assert wave[:, 8200:15900].max() == 0
    assert wave[:, 16400:23000].max() > 0.05


def test_an_excerpt_is_a_part_of_the_sound() -> None:
    scene = scene_of(px=20, vx=30, py=100, r0=15, hop=40, start=0.3, period=0.5)
    whole, part = sound_of(scene, 2 * RATE), sound_of(scene, RATE, 0.5)
    assert np.abs(whole[:, RATE // 2 : RATE // 2 + RATE] - part).max() < 2e-3


def test_two_objects_add_up_below_full_scale() -> None:
    loud = {"px": 64, "py": 100, "r0": 17, "hop": 40, "start": 0.3, "period": 0.5}
    scene = scene_of(**loud)
    scene.objects.append(scene_of(**loud).objects[0])
    assert np.abs(sound_of(scene)).max() < 1
    assert torch.tensor(sound_of(scene)).isfinite().all()
