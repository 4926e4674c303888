"""Which DiT is loaded, which one a request reaches, and what the second one costs."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import pytest
from fakes.small_media import clip, picture, sound

from h3_client.client import GenerationResult, H3Client, H3ClientError
from minimax_h3.core.contracts import MODELS, models_of
from minimax_h3.media.check import Expectation, check_mp4, frame_hashes, sample_hash
from minimax_h3.serve.settings import ServeSettings

Settings: TypeAlias = Callable[[str], ServeSettings]
StartServer: TypeAlias = Callable[[ServeSettings], Any]

POINTS = 5
CANVAS = {"width": 64, "height": 64, "num_inference_steps": POINTS}
REQUESTS: dict[str, dict[str, object]] = {
    "t2va": {},
    "fl2va": {"keyframes": [picture(80, 80), picture(60, 90, 1)], "frame_indices": [0, -1]},
    "ref2va": {
        "references": [picture(300, 280, 2), clip(112, 64, 50, with_sound=True), sound(2.1)]
    },
}
QUICK = REQUESTS | {"ref2va": {"references": [picture(300, 280, 2), sound(2.1)]}}
NOISE_BYTES = 16 * 1024**2  # of some twenty processes; a bench shows 2 % with a large DiT
DITS = ("dit_fl2va", "dit_ref2va")
ROUTE = {"t2va": "dit_fl2va", "fl2va": "dit_fl2va", "ref2va": "dit_ref2va"}
CALLS = 1 + (POINTS - 1) + 1  # start, steps, end; a step may be asked again until it is ready


@pytest.fixture(scope="module")
def combined(combined_server: Any) -> Any:
    return combined_server


def generate(server: Any, fields: dict[str, object]) -> GenerationResult:
    with H3Client(server.grpc_url) as client:
        return client.generate("a red ball bounces", **CANVAS, **fields)


def hashes(result: GenerationResult) -> tuple[list[str], str]:
    return frame_hashes(result.mp4[0]), sample_hash(result.mp4[0])


@pytest.mark.parametrize("task", REQUESTS)
def test_only_the_chosen_dit_is_called(combined: Any, task: str) -> None:
    before = {name: combined.inference_count(name) for name in DITS}
    result = generate(combined, REQUESTS[task])
    called = {name: combined.inference_count(name) - before[name] for name in DITS}
    assert called.pop(ROUTE[task]) >= CALLS
    assert list(called.values()) == [0]
    assert result.metadata["task"] == task
    partition = "Ref2VA" if task == "ref2va" else "FL2VA"
    assert result.metadata["checkpoint"]["partition"] == partition
    report = check_mp4(
        result.mp4[0],
        Expectation(width=64, height=64, num_frames=124, metadata=result.metadata),
    )
    assert report.passed, str(report)


def test_tasks_run_at_the_same_time_and_equal_their_solo_runs(combined: Any) -> None:
    alone = {task: hashes(generate(combined, fields)) for task, fields in QUICK.items()}
    with ThreadPoolExecutor(len(QUICK)) as pool:
        jobs = {task: pool.submit(generate, combined, fields) for task, fields in QUICK.items()}
        together = {task: hashes(job.result()) for task, job in jobs.items()}
    assert together == alone
    assert len({frames[0] for frames, _ in alone.values()}) == len(QUICK)


def test_a_driving_audio_may_join_any_task(combined: Any) -> None:
    source = sound(5.5, 3)
    pictures = {"ref2va": [picture(300, 280, 2)]}
    made = []
    for task in REQUESTS:
        files = {"references": [*pictures.get(task, []), source], "audio_mode": "lock_source"}
        made.append(generate(combined, REQUESTS[task] | files | {"task": task}))
    assert [result.metadata["task"] for result in made] == list(REQUESTS)
    sounds = {sample_hash(result.mp4[0]) for result in made}
    assert len(sounds) == 1  # the source's own, whatever is drawn to it
    assert sounds != {sample_hash(generate(combined, {"task": "t2va"}).mp4[0])}


def test_both_dits_hold_the_same(combined: Any) -> None:
    first, second = (combined.fresh_bytes[name] for name in DITS)
    assert first == pytest.approx(second, abs=NOISE_BYTES)


@pytest.mark.whole_soak
def test_a_start_for_ref2va_holds_one_dit_and_the_other_costs_one_dit(
    combined: Any, combined_settings: Settings, start_server: StartServer
) -> None:
    single = start_server(combined_settings("ref2va"))
    extra = sum(combined.fresh_bytes.values()) - sum(single.resident_bytes().values())
    assert extra == pytest.approx(combined.fresh_bytes["dit_fl2va"], abs=NOISE_BYTES)
    assert set(single.stubs()) == set(models_of("ref2va")) == set(MODELS) - {"dit_fl2va"}
    for task in ("t2va", "fl2va"):
        with pytest.raises(H3ClientError) as refusal:
            generate(single, {"task": task, **REQUESTS[task]})
        assert f"task: '{task}' is not served here" in str(refusal.value)
        assert "legal: ref2va" in str(refusal.value)
    assert generate(single, QUICK["ref2va"]).metadata["task"] == "ref2va"
