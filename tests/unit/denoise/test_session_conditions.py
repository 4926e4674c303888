"""What keyframes, references and a driving audio do to a session."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from oracles.denoise_loop import diffusers_loop
from oracles.diffusers_dit import diffusers_transformer
from session_samples import (
    DRIVER,
    FIRST,
    KEYFRAMES,
    LAST,
    MODEL,
    PICTURE,
    REFERENCES,
    SILENT_VIDEO,
    SOUND,
    TEXT_ROWS,
    VIDEO_WITH_SOUND,
    conditioning,
    plan_with,
    random_rows,
    run,
    runtime,
)

from minimax_h3.core.conditions import Condition
from minimax_h3.core.constants import Modality
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.denoise.session import Conditioning, DenoiseSession, fit_sound, pack
from minimax_h3.packing.patchify import rows_to_video, video_to_rows
from minimax_h3.packing.row_times import class_times, row_times

# Of 49 steps, absolute; latents reach 6. Seen: 1.5e-6.
LOOP_TOLERANCE = 1e-4


def latents_of(given: Conditioning, conditions: tuple[Condition, ...]) -> list[torch.Tensor]:
    """Condition latents [1, 24, t, h, w], as the reference takes them."""
    visual = [each for each in conditions if each.video_rows]
    rows = given.condition_rows.split([each.video_rows for each in visual])
    return [
        rows_to_video(part, each.latent_frames, each.latent_height, each.latent_width)[None]
        for part, each in zip(rows, visual, strict=True)
    ]


@pytest.mark.parametrize(
    "conditions", [[], *KEYFRAMES.values(), *REFERENCES.values()], ids=["", *KEYFRAMES, *REFERENCES]
)
def test_49_steps_equal_the_diffusers_loop(conditions: list[Condition]) -> None:
    plan, given = plan_with(*conditions, points=50), conditioning(*conditions)
    expected = diffusers_loop(
        diffusers_transformer(MODEL),
        plan,
        3,
        given.prompt_embeds,
        given.text_tags,
        latents_of(given, plan.conditions),
        given.audio_condition_rows,
    )
    session = DenoiseSession.prepare(runtime(), plan, 3, given)
    actual = run(session)
    assert session.steps_done == 49
    for ours, reference in zip(actual, expected, strict=True):
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, reference.numpy(), rtol=0, atol=LOOP_TOLERANCE)


@pytest.mark.parametrize("conditions", [*KEYFRAMES.values(), *REFERENCES.values()])
def test_visual_conditions_are_noised_once_and_everything_held_keeps_its_bits(
    conditions: list[Condition],
) -> None:
    given = conditioning(*conditions)
    session = DenoiseSession.prepare(runtime(), plan_with(*conditions), 3, given)
    held, held_sound = given.condition_rows.shape[0], given.audio_condition_rows.shape[0]
    video, audio = session._video.rows.clone(), session._audio.rows.clone()
    mixed = (video[:held] - 0.999 * given.condition_rows).abs()
    assert 0 < mixed.max() < 0.01  # one per mille of noise
    assert torch.equal(audio[:held_sound], given.audio_condition_rows)
    for index in range(4):
        session.step(index)
        assert torch.equal(session._video.rows[:held], video[:held])
        assert torch.equal(session._audio.rows[:held_sound], audio[:held_sound])
    assert not torch.equal(session._video.rows[held:], video[held:])
    assert not torch.equal(session._audio.rows[held_sound:], audio[held_sound:])


def test_every_condition_has_noise_of_its_own_shape() -> None:
    """The head of a draw as long as the target and one frame per condition, or longer if it is."""
    conditions = (PICTURE, VIDEO_WITH_SOUND, SILENT_VIDEO)
    given = replace(conditioning(*conditions), condition_rows=torch.zeros(8 + 14 + 24, 96))
    plan = replace(plan_with(*conditions), noise_recipe="per_stream")
    session = DenoiseSession.prepare(runtime(), plan, 3, given)
    level = 1.0 - torch.tensor(0.999)
    start = 0
    for each in conditions:
        frames = max(7 + 3, each.latent_frames)
        shape = (1, 24, frames, each.latent_height, each.latent_width)
        drawn = torch.randn(shape, generator=torch.Generator().manual_seed(3))
        expected = level * video_to_rows(drawn[0, :, : each.latent_frames])
        assert torch.equal(session._video.rows[start : start + each.video_rows], expected)
        start += each.video_rows
    assert start == 46


@pytest.mark.parametrize("conditions", [[FIRST], [PICTURE], [VIDEO_WITH_SOUND]])
def test_conditions_reach_the_targets(conditions: list[Condition]) -> None:
    given, plan = conditioning(*conditions), plan_with(*conditions)
    other = replace(given, condition_rows=given.condition_rows + 1.0)
    first, second = (run(DenoiseSession.prepare(runtime(), plan, 3, c)) for c in (given, other))
    assert np.abs(first[0] - second[0]).max() > 1e-3
    assert np.abs(first[1] - second[1]).max() > 1e-3


def test_reference_sound_reaches_the_targets() -> None:
    given, plan = conditioning(PICTURE, SOUND), plan_with(PICTURE, SOUND)
    other = replace(given, audio_condition_rows=given.audio_condition_rows + 1.0)
    first, second = (run(DenoiseSession.prepare(runtime(), plan, 3, c)) for c in (given, other))
    assert np.abs(first[0] - second[0]).max() > 1e-3
    assert np.abs(first[1] - second[1]).max() > 1e-3


def test_the_order_of_references_is_part_of_the_request() -> None:
    given = conditioning(PICTURE, PICTURE)
    swapped = replace(given, condition_rows=given.condition_rows.roll(8, 0))
    plan = plan_with(PICTURE, PICTURE)
    first, second = (run(DenoiseSession.prepare(runtime(), plan, 3, c)) for c in (given, swapped))
    assert np.abs(first[0] - second[0]).max() > 1e-3


@pytest.mark.parametrize("others", [[], [FIRST, LAST], [PICTURE, SOUND]])
def test_a_driving_audio_is_the_sound_that_comes_out(others: list[Condition]) -> None:
    given, plan = conditioning(*others, DRIVER), plan_with(*others, DRIVER)
    session = DenoiseSession.prepare(runtime(), plan, 3, given)
    driver = given.audio_condition_rows[-18:]
    for index in range(4):
        session.step(index)
        assert torch.equal(session._audio.rows, given.audio_condition_rows)
    video, audio = session.latents()
    assert np.array_equal(audio, driver.reshape(2, 9, 32).transpose(1, 2).numpy())
    louder = replace(given, audio_condition_rows=given.audio_condition_rows * 2)
    assert np.abs(run(DenoiseSession.prepare(runtime(), plan, 3, louder))[0] - video).max() > 1e-3


def test_a_driving_audio_is_told_to_be_clean_from_the_first_step() -> None:
    layout = pack(plan_with(DRIVER), torch.ones(TEXT_ROWS, dtype=torch.int64))
    assert layout.num_condition_audio_rows == layout.stream_rows(Modality.AUDIO) == 18
    open_layout = pack(plan_with(), torch.ones(TEXT_ROWS, dtype=torch.int64))
    assert torch.equal(layout.positions, open_layout.positions)
    times = row_times(layout, class_times(0.25, 0.5))
    assert times.times[times.index[layout.audio_indices]].tolist() == [1.0] * 18
    assert 0.5 not in times.times


def test_a_driving_audio_equals_a_loop_that_writes_it_back_each_step() -> None:
    """Held rows are one way to say it; the other is to restore the rows after every step."""
    given, plan = conditioning(DRIVER), plan_with(DRIVER)
    session = DenoiseSession.prepare(runtime(), plan, 3, given)
    held = run(session)
    restoring = DenoiseSession.prepare(runtime(), plan, 3, given)
    restoring._audio.held = 0  # steps write the sound as well ...
    for index in range(4):
        restoring.step(index)
        with torch.inference_mode():
            restoring._audio.rows.copy_(given.audio_condition_rows)  # ... and lose it again
    assert all(np.array_equal(a, b) for a, b in zip(held, restoring.latents(), strict=True))


@pytest.mark.parametrize(("given", "wanted"), [(5, 9), (12, 9), (9, 9), (0, 3)])
def test_a_driving_audio_is_cut_or_filled_per_channel(given: int, wanted: int) -> None:
    rows = random_rows(2 * given, 32, 7)
    fitted = fit_sound(rows, wanted)
    assert fitted.shape == (2 * wanted, 32)
    for channel in range(2):
        for latent in range(wanted):
            expected = rows[channel * given + latent] if latent < given else torch.zeros(32)
            assert torch.equal(fitted[channel * wanted + latent], expected)


@pytest.mark.parametrize("conditions", [[FIRST], [PICTURE, SOUND], [DRIVER]])
def test_rows_of_conditions_that_the_plan_has_and_nobody_encoded_are_refused(
    conditions: list[Condition],
) -> None:
    with pytest.raises(InvalidRequestError, match=r"CONDITION_ROWS: shape \[0, \d+\]"):
        DenoiseSession.prepare(runtime(), plan_with(*conditions), 3, conditioning())
