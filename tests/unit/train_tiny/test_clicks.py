"""What makes an autoencoder learn clicks: their error and their excerpts."""

import math

import numpy as np
import pytest
import torch

from build_engines.train_tiny import vocabulary as words
from build_engines.train_tiny.architecture import new_audio_vae
from build_engines.train_tiny.audio_learner import AudioLearner, compare_sounds
from build_engines.train_tiny.batches import training_batch
from build_engines.train_tiny.click_error import ClickError
from build_engines.train_tiny.sound import click, render_sound, tone

RATE = 32_000
CPU = torch.device("cpu")
CANVAS = (128, 128)


def struck(at_s: float = 0.3, level: float = 1.0, phase: float = 0.0, samples: int = RATE):
    """A tone with one click, [1, 1, samples]."""
    times = torch.arange(samples) / RATE
    since = times - at_s
    burst = torch.sin(2 * math.pi * words.CLICK_HZ * since + phase)
    burst = burst * torch.exp(-since.clamp_min(0) / words.CLICK_DECAY_S) * (since >= 0)
    sounds = 0.2 * tone(torch.tensor(440.0), times) + level * words.CLICK_LEVEL * burst
    return sounds[None, None].float()


def click_error(decoded: torch.Tensor, wave: torch.Tensor) -> float:
    return ClickError()(decoded, wave).item()


def test_a_missing_click_is_the_whole_error_and_the_right_one_none() -> None:
    assert click_error(struck(level=0), struck()) == pytest.approx(0.95, abs=0.03)
    assert click_error(struck(), struck()) < 1e-3
    assert torch.equal(
        struck(),
        0.2 * tone(torch.tensor(440.0), torch.arange(RATE) / RATE)[None, None].float()
        + words.CLICK_LEVEL * click(torch.arange(RATE) / RATE - 0.3),
    )


@pytest.mark.parametrize("phase", [0.5, math.pi / 2, math.pi])
def test_a_click_of_another_phase_is_nearly_right(phase: float) -> None:
    """The error of the waveform is larger than without any click."""
    wrong = struck(phase=phase)
    assert click_error(wrong, struck()) < 0.02
    if phase > 1.1:
        distances = [(x - struck()).square().sum() for x in (wrong, struck(level=0))]
        assert distances[0] > distances[1]


def test_the_error_falls_as_a_click_nears_its_time() -> None:
    errors = [click_error(struck(0.3 + late), struck()) for late in (0.02, 0.01, 0.004, 0.001, 0)]
    assert np.all(np.diff(errors) < -0.05)
    early = [click_error(struck(0.3 - early), struck()) for early in (0.02, 0.01, 0.004, 0.001, 0)]
    assert np.all(np.diff(early) < -0.05)


def test_the_error_falls_as_a_click_nears_its_level() -> None:
    for levels in ((0.0, 0.1, 0.3, 0.6, 0.9, 1.0), (2.5, 1.8, 1.3, 1.0)):
        errors = [click_error(struck(level=level), struck()) for level in levels]
        assert np.all(np.diff(errors) < -0.03)


def slope_at(level: float) -> float:
    gain = torch.tensor(level, requires_grad=True)
    decoded = struck(level=0) + gain * (struck() - struck(level=0))
    (slope,) = torch.autograd.grad(ClickError()(decoded, struck()).sum(), gain)
    return slope.item()


def test_a_faint_click_is_drawn_on() -> None:
    """A decoder without clicks leaves a thousandth of one: from there the error falls steepest."""
    assert slope_at(0.001) < 20 * slope_at(0.5) < 0
    assert slope_at(0.01) < 5 * slope_at(0.5)


def test_false_clicks_count_and_tones_do_not() -> None:
    silent = torch.zeros(1, 1, RATE)
    assert click_error(struck(), struck(level=0)) > 1
    assert click_error(struck(level=0), silent) < 0.02
    times = torch.arange(RATE) / RATE
    highest = 0.28 * tone(torch.tensor(784.0), times)[None, None].float()
    assert click_error(highest, silent) < 0.3


def strikes(scenes, seconds: float) -> list[bool]:
    """Whether each excerpt has a click, by the sound with it and without."""
    samples = round(seconds * RATE)
    with_clicks, tones = (
        render_sound(scenes, *CANVAS, samples, clicks=clicks) for clicks in (True, False)
    )
    return ((with_clicks - tones).abs().amax((1, 2)) > 0.05).tolist()


@pytest.mark.parametrize("seconds", [0.2, 1.0, 4.0])
def test_excerpts_with_a_bounce(seconds: float) -> None:
    scenes = training_batch(3, 5, 24, CANVAS, seconds, with_bounce=12)
    heard = strikes(scenes, seconds)
    assert sum(heard[:12]) >= 11  # a bounce in the last samples of an excerpt is hardly heard
    assert sum(heard[12:]) < 7
    assert len({tuple(row) for row in scenes.motion[:, 0].tolist()}) == 24


def test_other_excerpts_stay_what_they_were() -> None:
    """The held-out seed aside, a piece's seed decides its clips: bounces change the first alone."""
    plain, some = (training_batch(3, 5, 6, CANVAS, 1.0, with_bounce=n) for n in (0, 2))
    for name, values in plain.tensors().items():
        assert torch.equal(values[2:], some.tensors()[name][2:])


def test_half_of_the_excerpts_of_a_step_have_a_click() -> None:
    learner = AudioLearner(new_audio_vae(0), CPU, batch=16)
    heard = [hit for step in range(3) for hit in strikes(learner.draw("excerpt", step), 1.0)]
    assert 0.45 < np.mean(heard) < 0.75


def test_clicks_are_worth_more_than_a_few_decibels() -> None:
    """The weights that are kept are not those whose tones are a little better without clicks."""
    wave, tones = (struck(level=level)[0].expand(2, -1).numpy() for level in (1, 0))
    noise = np.random.default_rng(0).standard_normal(wave.shape).astype(np.float32)
    silent = compare_sounds([(tones, wave)], 24)
    struck_again = compare_sounds([(wave + 0.02 * noise, wave)], 24)
    assert (silent["click_share"], struck_again["click_share"]) == (0, 1)
    assert silent["snr"] > struck_again["snr"] + 1
    assert struck_again["score"] > silent["score"] + 4
    false = compare_sounds([(wave, tones)], 24)
    assert false["false_clicks"] == 1
    assert false["score"] < compare_sounds([(tones + 1e-3 * noise, tones)], 24)["score"]
