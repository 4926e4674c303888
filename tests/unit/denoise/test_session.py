import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from oracles.denoise_loop import diffusers_loop
from oracles.diffusers_dit import ATTENTION, CONVERTER, diffusers_transformer, random_transformer
from torch.utils._python_dispatch import TorchDispatchMode

from minimax_h3.caches.adaln_table import AdaLNTableCache
from minimax_h3.core.conditions import (
    AUDIO,
    DRIVING_AUDIO,
    IMAGE,
    KEYFRAME,
    LAST_FRAME,
    VIDEO,
    Condition,
)
from minimax_h3.core.constants import Modality
from minimax_h3.core.errors import H3Error, InvalidRequestError
from minimax_h3.core.plan import Plan
from minimax_h3.denoise.session import (
    Conditioning,
    DenoiseSession,
    DitRuntime,
    fit_sound,
    pack,
)
from minimax_h3.packing.patchify import rows_to_video, video_to_rows
from minimax_h3.packing.row_times import class_times, row_times

# Of 49 steps, absolute; latents reach 6. Seen: 1.5e-6.
LOOP_TOLERANCE = 1e-4

MODEL = random_transformer(CONVERTER)
TEXT_ROWS = 5
PLAN = Plan(
    job_id="job",
    alias="",
    task="t2va",
    width=96,
    height=64,
    num_frames=22,
    latent_frames=7,
    latent_height=4,
    latent_width=6,
    audio_latents=9,
    text_rows=TEXT_ROWS,
    packed_rows=TEXT_ROWS + 18 + 42,
    num_points=50,
    flow_shift=12.0,
    audio_flow_shift=3.0,
    seeds=(3,),
    noise_recipe="single_stream",
    return_frames=False,
    video_preset="veryfast",
    video_crf=18,
    received_at=0.0,
)
SHORT = replace(PLAN, num_points=5)

FIRST = Condition(KEYFRAME, 0, "", 96, 64, num_frames=1)
LAST = replace(FIRST, frame_index=LAST_FRAME)
PICTURE = Condition(IMAGE, 0, "", 64, 128, num_frames=1)
SILENT_VIDEO = Condition(VIDEO, 0, "", 64, 32, num_frames=39)
VIDEO_WITH_SOUND = replace(SILENT_VIDEO, num_frames=22, audio_latents=37)
SOUND = Condition(AUDIO, 0, "", audio_latents=6)
DRIVER = Condition(DRIVING_AUDIO, 0, "", audio_latents=9)
KEYFRAMES = {"first": [FIRST], "last": [LAST], "both": [FIRST, LAST]}
REFERENCES = {
    "image": [PICTURE],
    "video with sound": [VIDEO_WITH_SOUND],
    "image, video, sound": [PICTURE, VIDEO_WITH_SOUND, SOUND],
    "three images": [PICTURE, replace(PICTURE, width=96, height=32), PICTURE],
    "image and sound": [PICTURE, SOUND],
    "sound first, silent video": [SOUND, SILENT_VIDEO],
}


def random_rows(rows: int, width: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def plan_with(*conditions: Condition, points: int = 5) -> Plan:
    references = any(each.kind not in (KEYFRAME, DRIVING_AUDIO) for each in conditions)
    task = "ref2va" if references else "fl2va" if conditions else "t2va"
    return replace(PLAN, task=task, num_points=points, conditions=conditions)


def conditioning(*conditions: Condition) -> Conditioning:
    tags = torch.ones(TEXT_ROWS, dtype=torch.int64)
    tags[1:3] = 0
    sound = sum(2 * each.audio_latents for each in conditions)
    return Conditioning(
        prompt_embeds=random_rows(TEXT_ROWS, 48, 4),
        text_tags=tags,
        condition_rows=random_rows(sum(each.video_rows for each in conditions), 96, 5),
        audio_condition_rows=random_rows(sound, 32, 6),
    )


def latents_of(given: Conditioning, conditions: tuple[Condition, ...]) -> list[torch.Tensor]:
    """Condition latents [1, 24, t, h, w], as the reference takes them."""
    visual = [each for each in conditions if each.video_rows]
    rows = given.condition_rows.split([each.video_rows for each in visual])
    return [
        rows_to_video(part, each.latent_frames, each.latent_height, each.latent_width)[None]
        for part, each in zip(rows, visual, strict=True)
    ]


def runtime() -> DitRuntime:
    return DitRuntime(MODEL, ATTENTION, AdaLNTableCache(), "random")


def run(session: DenoiseSession) -> tuple[np.ndarray, np.ndarray]:
    for index in range(session.steps_done, session.num_forwards):
        session.step(index)
    return session.latents()


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


def test_50_points_are_49_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    step = type(MODEL).step
    monkeypatch.setattr(type(MODEL), "step", lambda self, *a: calls.append(1) or step(self, *a))
    session = DenoiseSession.prepare(runtime(), PLAN, 3, conditioning())
    assert session.num_forwards == 49
    assert not calls  # preparing runs no forward
    session.step(0)
    assert len(calls) == 1
    run(session)
    assert len(calls) == 49


def test_per_request_work_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def count(owner: type, name: str) -> None:
        real = getattr(owner, name)

        def counted(self: object, *args: object) -> object:
            calls.append(name)
            return real(self, *args)

        monkeypatch.setattr(owner, name, counted)

    count(type(MODEL), "modulation")
    count(type(MODEL.refiner), "forward")
    count(type(MODEL), "prepare")
    shared = runtime()
    run(DenoiseSession.prepare(shared, SHORT, 3, conditioning()))
    assert sorted(calls) == ["forward", "modulation", "prepare"]
    run(DenoiseSession.prepare(shared, SHORT, 4, conditioning()))
    assert calls.count("modulation") == 1  # the second request has the same schedule


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


@pytest.mark.parametrize("recipe", ["per_stream", "single_stream"])
def test_a_seed_decides_everything(recipe: str) -> None:
    plan = replace(SHORT, noise_recipe=recipe)
    first, again, other = (
        run(DenoiseSession.prepare(runtime(), plan, seed, conditioning())) for seed in (3, 3, 4)
    )
    assert np.array_equal(first[0], again[0])
    assert np.array_equal(first[1], again[1])
    assert not np.array_equal(first[0], other[0])


def test_the_two_recipes_give_two_clips() -> None:
    clips = [
        run(
            DenoiseSession.prepare(
                runtime(), replace(SHORT, noise_recipe=recipe), 3, conditioning()
            )
        )
        for recipe in ("per_stream", "single_stream")
    ]
    assert not np.array_equal(clips[0][0], clips[1][0])


def test_latents_have_the_shapes_of_the_plan() -> None:
    video, audio = run(DenoiseSession.prepare(runtime(), SHORT, 3, conditioning()))
    assert video.shape == (24, 7, 4, 6)
    assert audio.shape == (2, 32, 9)
    assert isinstance(video, np.ndarray)
    assert isinstance(audio, np.ndarray)


def test_interleaved_sessions_equal_solo_runs() -> None:
    shared = runtime()
    plans = (SHORT, replace(SHORT, num_points=6, flow_shift=6.0))
    solo = [run(DenoiseSession.prepare(runtime(), p, 3, conditioning())) for p in plans]
    together = [DenoiseSession.prepare(shared, p, 3, conditioning()) for p in plans]
    for index in range(5):
        for session in together:
            if index < session.num_forwards:
                session.step(index)
    for session, alone in zip(together, solo, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(session.latents(), alone, strict=True))


def test_a_session_may_move_between_threads() -> None:
    expected = run(DenoiseSession.prepare(runtime(), SHORT, 3, conditioning()))
    made: list[DenoiseSession] = []
    shared = runtime()
    preparer = threading.Thread(
        target=lambda: made.append(DenoiseSession.prepare(shared, SHORT, 3, conditioning()))
    )
    preparer.start()
    preparer.join()
    assert np.array_equal(run(made[0])[0], expected[0])


@pytest.mark.parametrize(
    ("done", "asked", "legal"), [(0, 1, "0 "), (2, 1, "2 "), (2, 2 + 1, "2 "), (0, -1, "0 ")]
)
def test_a_wrong_step_is_refused(done: int, asked: int, legal: str) -> None:
    session = DenoiseSession.prepare(runtime(), SHORT, 3, conditioning())
    for index in range(done):
        session.step(index)
    before = session._video.rows.clone()
    with pytest.raises(InvalidRequestError, match=f"STEP: {asked} is not legal; legal: {legal}"):
        session.step(asked)
    assert session.steps_done == done
    assert torch.equal(session._video.rows, before)


def test_a_finished_session_takes_no_step() -> None:
    session = DenoiseSession.prepare(runtime(), SHORT, 3, conditioning())
    run(session)
    with pytest.raises(InvalidRequestError, match=r"STEP: 4.*none, all are done \(of 0 \.\. 3\)"):
        session.step(4)


class NoHostSync(TorchDispatchMode):
    """Fails on every operation that would wait for a device."""

    waits = ("_local_scalar_dense", "nonzero", "unique", "equal", "item", "is_nonzero", "randn")

    def __torch_dispatch__(
        self, func: object, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        name = str(func).split(".")[1]
        assert not any(word in name for word in self.waits), f"{func} in a step"
        self.seen.append(name)
        return func(*args, **(kwargs or {}))  # type: ignore[operator]  # an operator overload

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []


def test_a_step_never_waits_for_the_device() -> None:
    conditions = (PICTURE, VIDEO_WITH_SOUND, SOUND)
    session = DenoiseSession.prepare(
        runtime(), plan_with(*conditions), 3, conditioning(*conditions)
    )
    with NoHostSync() as watch:
        session.step(0)
    assert len(watch.seen) > 50
    value = torch.zeros(1)
    with pytest.raises(AssertionError, match="_local_scalar_dense"), NoHostSync():
        float(value)


Change = Callable[[Conditioning], Conditioning]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            lambda c: replace(c, prompt_embeds=torch.zeros(4, 48)),
            r"PROMPT_EMBEDS: shape \[4, 48\] is not legal; legal: \[5, 48\]",
        ),
        (lambda c: replace(c, prompt_embeds=torch.zeros(5, 47)), r"legal: \[5, 48\]"),
        (
            lambda c: replace(c, text_tags=torch.ones(6, dtype=torch.int64)),
            r"TEXT_TAGS: shape \[6\] is not legal; legal: \[5\]",
        ),
        (lambda c: replace(c, text_tags=c.text_tags + 1), "text_tags: 2"),
        (
            lambda c: replace(c, condition_rows=torch.zeros(6, 96)),
            r"CONDITION_ROWS: shape \[6, 96\] is not legal; legal: \[0, 96\]",
        ),
        (
            lambda c: replace(c, audio_condition_rows=torch.zeros(2, 32)),
            r"AUDIO_CONDITION_ROWS: shape \[2, 32\] is not legal; legal: \[0, 32\]",
        ),
        (
            lambda c: replace(c, prompt_embeds=torch.full((5, 48), float("nan"))),
            "PROMPT_EMBEDS: not finite",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(change: Change, named: str) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        DenoiseSession.prepare(runtime(), SHORT, 3, change(conditioning()))


@pytest.mark.parametrize("conditions", [[FIRST], [PICTURE, SOUND], [DRIVER]])
def test_rows_of_conditions_that_the_plan_has_and_nobody_encoded_are_refused(
    conditions: list[Condition],
) -> None:
    with pytest.raises(InvalidRequestError, match=r"CONDITION_ROWS: shape \[0, \d+\]"):
        DenoiseSession.prepare(runtime(), plan_with(*conditions), 3, conditioning())


def test_an_unknown_recipe_is_refused() -> None:
    plan = replace(SHORT, noise_recipe="device")
    with pytest.raises(InvalidRequestError, match="noise_recipe: 'device'"):
        DenoiseSession.prepare(runtime(), plan, 3, conditioning())


def test_latents_that_are_not_finite_are_an_error() -> None:
    session = DenoiseSession.prepare(runtime(), SHORT, 3, conditioning())
    session.step(0)
    with torch.inference_mode():
        session._audio.result[0, 0] = float("inf")
    with pytest.raises(H3Error, match="audio latents are not finite after 1 steps"):
        session.latents()


def test_bf16_stays_close_to_fp32() -> None:
    exact = run(DenoiseSession.prepare(runtime(), SHORT, 3, conditioning()))
    half = DitRuntime(
        random_transformer(CONVERTER).cast_(torch.bfloat16), ATTENTION, AdaLNTableCache(), "bf16"
    )
    rounded = run(DenoiseSession.prepare(half, SHORT, 3, conditioning()))
    for a, b in zip(rounded, exact, strict=True):
        assert a.dtype == np.float32
        assert np.linalg.norm(a - b) / np.linalg.norm(b) < 0.02
