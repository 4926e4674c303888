"""A process of a model dies or hangs: its jobs end, the others go on, the model serves again.

At the end `h3 serve` itself is killed: the last test of the server that files before share.
"""

import subprocess
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from machine_pace import slowness
from supervised import (
    H3,
    HANGING_STEP,
    SERVED,
    Supervised,
    single_instance_models,
    supervised,
    wait_for,
)

from h3_client.client import GenerationResult, H3ClientError
from minimax_h3.core.contracts import DENOISER_INSTANCES
from minimax_h3.media.check import frame_hashes, sample_hash
from minimax_h3.serve.stubs import is_alive

HEARS_S = 5.0  # the client of a job whose worker died
SERVES_S = 30.0  # a quiet machine needs less than 10: docs/benchmarks.md
pytestmark = pytest.mark.timeout(300)

REQUEST = {"prompt": "a red ball", "width": 64, "height": 64, "num_inference_steps": 5}
HANGS = {**REQUEST, "num_inference_steps": HANGING_STEP + 5}
# The stage whose boundary comes right before a model's own work.
HELD = ("text_encoder", "condition_encoder", "video_decoder", "audio_decoder", "muxer")


@pytest.fixture(scope="module")
def serving(supervised_server: Supervised) -> Supervised:
    supervised_server.client().generate(**REQUEST)
    return supervised_server


def hashes(result: GenerationResult) -> tuple[object, str]:
    return frame_hashes(result.mp4[0]), sample_hash(result.mp4[0])


def kill(serving: Supervised, model: str, stub: psutil.Process) -> float:
    """End a process and wait until the supervisor says that the model serves; its seconds."""
    before = serving.says(f"{model}: serves again")
    stub.kill()
    return wait_for(lambda: serving.says(f"{model}: serves again") > before, SERVES_S + 10)


def check_whole(serving: Supervised, model: str) -> None:
    """The server is as new: one process a weight, no session, and it makes the same clip."""
    client = serving.client()
    assert client.generate(**REQUEST).mp4
    wait_for(lambda: serving.sessions() == 0)
    assert client.ping()["active"] == 0
    assert {name: serving.most[name] for name in single_instance_models()} == dict.fromkeys(
        single_instance_models(), 1
    )
    assert serving.process.poll() is None
    assert all(is_alive(stub) for stub in serving.stubs(model))


def _held() -> list[object]:
    """`make test` takes the largest of them: every death takes a load of the model."""
    marks = pytest.mark.whole_soak
    return [pytest.param(name, marks=() if name == "video_decoder" else marks) for name in HELD]


@pytest.mark.soak
def test_an_idle_process_dies(serving: Supervised, whole_soak: bool) -> None:
    models = SERVED if whole_soak else ["minimax_h3_stream"]
    for model in models:
        (victim, *_) = serving.stubs(model)
        assert kill(serving, model, victim) < SERVES_S
        check_whole(serving, model)


def start(serving: Supervised, pool: ThreadPoolExecutor, name: str, steps: int) -> Future:
    fields = {**REQUEST, "num_inference_steps": steps, "request_id": name}
    job = pool.submit(lambda: serving.client().generate(**fields))
    wait_for(lambda: serving.client().job(name).get("stage"))
    return job


def in_loop(serving: Supervised, name: str) -> bool:
    job = serving.client().job(name)
    return job.get("stage") == "denoiser" and int(str(job.get("step"))) > 0


def hears(job: Future, began: float) -> H3ClientError:
    with pytest.raises(H3ClientError) as heard:
        job.result(60)
    assert time.monotonic() - began < HEARS_S
    return heard.value


def test_the_dit_dies_under_a_job(serving: Supervised) -> None:
    with ThreadPoolExecutor(2) as pool:
        job = start(serving, pool, "under-the-dit", 50)
        wait_for(lambda: in_loop(serving, "under-the-dit"))
        before = serving.says("dit_fl2va: serves again")
        (victim,) = serving.stubs("dit_fl2va")
        began = time.monotonic()
        victim.kill()
        hears(job, began)
        wait_for(lambda: serving.client().job("under-the-dit")["state"] == "failed", HEARS_S)
        wait_for(lambda: serving.says("dit_fl2va: serves again") > before, SERVES_S)
    check_whole(serving, "dit_fl2va")


def test_one_loop_dies_and_the_other_goes_on(serving: Supervised) -> None:
    with ThreadPoolExecutor(2) as pool:
        before = serving.says("denoiser: serves again")
        jobs = {name: start(serving, pool, name, 50) for name in ("loop-a", "loop-b")}
        for name in jobs:
            wait_for(lambda name=name: in_loop(serving, name))
        victim = serving.client().job("loop-a")["loop_pid"]
        began = time.monotonic()
        next(stub for stub in serving.stubs("denoiser") if stub.pid == victim).kill()
        hears(jobs["loop-a"], began)
        assert jobs["loop-b"].result(60).mp4
        assert serving.client().job("loop-a")["error"]["kind"] == "worker_lost"
        wait_for(lambda: serving.says("denoiser: serves again") > before, SERVES_S)
    check_whole(serving, "denoiser")


def test_jobs_dies_and_a_running_job_completes(serving: Supervised) -> None:
    alone = hashes(serving.client().generate(**REQUEST | {"num_inference_steps": 20}))
    with ThreadPoolExecutor(1) as pool:
        job = start(serving, pool, "without-jobs", 20)
        wait_for(lambda: in_loop(serving, "without-jobs"))
        kill(serving, "jobs", serving.stubs("jobs")[0])
        assert hashes(job.result(60)) == alone
    check_whole(serving, "jobs")


@pytest.mark.parametrize("model", _held())
def test_a_stage_dies_in_its_work(serving: Supervised, model: str) -> None:
    (victim,) = serving.stubs(model)
    victim.suspend()  # so that the job is in it for sure
    with ThreadPoolExecutor(1) as pool:
        name = f"in-{model}"
        job = pool.submit(lambda: serving.client().generate(**REQUEST, request_id=name))
        wait_for(lambda: model in serving.client().job(name).get("awaiting", []))
        time.sleep(0.5)
        kill(serving, model, victim)
        with pytest.raises(H3ClientError):
            job.result(HEARS_S)
    assert serving.client().job(name)["error"]["kind"] in ("worker_lost", "cancelled")
    check_whole(serving, model)


def test_a_job_ahead_of_a_dead_stage_ends_at_once(serving: Supervised) -> None:
    """Triton binds it to the dead process: without this it would compute for nothing."""
    with ThreadPoolExecutor(1) as pool:
        job = start(serving, pool, "ahead", 50)
        wait_for(lambda: in_loop(serving, "ahead"))
        began = time.monotonic()
        kill(serving, "muxer", serving.stubs("muxer")[0])
        error = hears(job, began)
    assert "muxer" in error.message
    check_whole(serving, "muxer")


def test_health_names_a_model_that_is_silent(serving: Supervised) -> None:
    before = serving.says("muxer: serves again")
    (victim,) = serving.stubs("muxer")
    victim.suspend()
    words = [str(H3), "health", "--url", serving.facts["http_url"], "--timeout", "3"]
    sick = subprocess.run(words, capture_output=True, text=True, check=False)
    victim.kill()
    assert sick.returncode == 1
    assert "muxer: SILENT" in sick.stdout.splitlines()
    wait_for(lambda: serving.says("muxer: serves again") > before, SERVES_S)
    check_whole(serving, "muxer")


def test_old_loops_do_not_pile_up_and_take_no_metric_along(serving: Supervised) -> None:
    def counted() -> float:
        return serving.metric("h3_queue_wait_seconds_count")

    before = counted()
    serving.client().generate(**REQUEST)
    wait_for(lambda: counted() >= before + 1)
    for _ in range(2):
        kill(serving, "denoiser", serving.stubs("denoiser")[-1])
        assert serving.client().generate(**REQUEST).mp4
    wait_for(lambda: len(serving.stubs("denoiser")) == DENOISER_INSTANCES)
    assert serving.client().generate(**REQUEST).mp4
    wait_for(lambda: counted() >= before + 1 + 2 + 1)


def test_a_step_that_hangs_ends_its_job_and_its_dit(serving: Supervised) -> None:
    (hung,) = serving.stubs("dit_fl2va")
    before = serving.says("dit_fl2va: serves again")
    with pytest.raises(H3ClientError) as ended:
        serving.client().generate(**HANGS, request_id="hangs")
    assert ended.value.status == "UNAVAILABLE"
    assert serving.client().job("hangs")["error"]["kind"] == "worker_lost"
    wait_for(lambda: serving.says("dit_fl2va: serves again") > before, SERVES_S)
    assert not is_alive(hung)
    assert serving.says("dit_fl2va: is silent about job")
    assert serving.client().generate(**REQUEST).mp4


@pytest.mark.whole_soak
def test_an_idle_process_hangs(serving: Supervised) -> None:
    before = serving.says("text_encoder: serves again")
    (victim,) = serving.stubs("text_encoder")
    victim.suspend()
    # Probed every 10 s, two answers of 5 s are waited for.
    wait_for(lambda: serving.says("text_encoder: serves again") > before, 25 + SERVES_S)
    check_whole(serving, "text_encoder")


@pytest.mark.slow
@pytest.mark.whole_soak
def test_a_long_step_is_no_hang(tiny_checkpoint: Path, tmp_path: Path) -> None:
    words = ("--test-step-delay-ms", "5000", "--hang-timeout", "1", "--silence-timeout", "30")
    with supervised(tiny_checkpoint, tmp_path, *words) as serving:
        result = serving.client().generate(**REQUEST | {"num_inference_steps": 4})
        assert result.mp4
        assert not serving.says("new process")


def test_a_killed_guardian_has_a_successor_and_no_job_hears_of_it(serving: Supervised) -> None:
    client = serving.client()
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(client.generate, **REQUEST | {"num_inference_steps": 20})
        for deaths in (1, 2):
            killed = guardian_of(serving)
            killed.kill()
            took_s = wait_for(lambda deaths=deaths: serving.says("took over") == deaths)
            assert took_s < 2.0 * slowness(serving.facts["grpc_url"])
            assert serving.says(f"guardian {killed.pid} ended with -9")
            assert guardian_of(serving).pid != killed.pid
        assert job.result(60).mp4


def guardian_of(serving: Supervised) -> psutil.Process:
    (guardian,) = (
        child
        for child in psutil.Process(serving.process.pid).children()
        if is_alive(child) and "minimax_h3.serve.guardian" in child.cmdline()
    )
    return guardian


def test_after_kill_nine_nothing_is_left(serving: Supervised) -> None:
    """Also not the DiT and the loop that wait for each other's answers; by a second guardian."""
    server = psutil.Process(serving.server_pid)
    started = [server, *server.children(recursive=True)]
    guardian = guardian_of(serving)
    client = serving.client()
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(client.generate, **HANGS, request_id="running")
        wait_for(lambda: client.job("running").get("step", 0) > 2)
        assert list(Path("/dev/shm").glob(f"{serving.region_prefix}*"))
        serving.process.kill()
        began = time.monotonic()
        wait_for(lambda: not any(map(is_alive, [*started, guardian])), 10.0)
        assert not list(Path("/dev/shm").glob(f"{serving.region_prefix}*"))
        assert time.monotonic() - began < 5.0
        with pytest.raises(H3ClientError):
            job.result(10)
