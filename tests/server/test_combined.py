"""Which DiT is loaded, which one a request reaches, and what the second one costs."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from fakes.small_media import clip, picture, sound
from fakes.small_references import write_repository

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
def settings(
    serve_settings: Callable[..., ServeSettings],
    tiny_checkpoint: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Settings:
    """Settings of a server with that task type; references are prepared small."""
    repository = write_repository(tmp_path_factory.mktemp("small"))
    return lambda task_type: serve_settings(
        tiny_checkpoint, repository, task_type=task_type, running_jobs=3, max_jobs=3
    )


@pytest.fixture(scope="module")
def started(settings: Settings, start_shared_server: StartServer) -> tuple[Any, dict[str, int]]:
    """A server with both DiTs, and its memory before any request."""
    server = start_shared_server(settings("combined"))
    return server, resident(server)


@pytest.fixture(scope="module")
def combined(started: tuple[Any, dict[str, int]]) -> Any:
    return started[0]


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


@pytest.mark.parametrize(
    ("task_type", "served", "refused"),
    [("fl2va", ["t2va", "fl2va"], ["ref2va"]), ("ref2va", ["ref2va"], ["t2va", "fl2va"])],
)
def test_a_start_holds_what_its_task_type_needs_and_the_other_dit_costs_one_dit(
    started: tuple[Any, dict[str, int]],
    settings: Settings,
    start_server: StartServer,
    task_type: str,
    served: list[str],
    refused: list[str],
) -> None:
    server = start_server(settings(task_type))
    assert set(server.stubs()) == set(models_of(task_type))
    assert len(server.stubs()) == len(MODELS) - 1

    (other,) = set(MODELS) - set(server.stubs())
    extra = sum(started[1].values()) - sum(resident(server).values())
    assert extra == pytest.approx(started[1][other], abs=NOISE_BYTES)

    for task in refused:
        with pytest.raises(H3ClientError) as refusal:
            generate(server, {"task": task, **REQUESTS[task]})
        legal = ", ".join(["t2va", "fl2va"] if task_type == "fl2va" else ["ref2va"])
        assert f"task: '{task}' is not served here" in str(refusal.value)
        assert f"legal: {legal}" in str(refusal.value)
    last = served[-1]
    assert generate(server, QUICK[last]).metadata["task"] == last


def resident(server: Any) -> dict[str, int]:
    """Memory that the processes of each model have for themselves, in bytes."""
    return {
        name: sum(stub.memory_full_info().uss for stub in stubs)
        for name, stubs in server.stubs().items()
    }
