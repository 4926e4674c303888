"""One clip's session: what a step does, what it never does, what it refuses."""

import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from oracles.diffusers_dit import ATTENTION, CONVERTER, random_transformer
from session_samples import (
    MODEL,
    PICTURE,
    PLAN,
    SHORT,
    SOUND,
    VIDEO_WITH_SOUND,
    conditioning,
    plan_with,
    run,
    runtime,
)
from torch.utils._python_dispatch import TorchDispatchMode

from minimax_h3.caches.adaln_table import AdaLNTableCache
from minimax_h3.core.errors import H3Error, InvalidRequestError
from minimax_h3.denoise.session import Conditioning, DenoiseSession, DitRuntime


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
