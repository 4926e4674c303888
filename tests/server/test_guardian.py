"""What no order reaches any more: a step that hangs, processes left behind, a killed `h3 serve`."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from supervised import Supervised, supervised, wait_for

from h3_client.client import H3Client, H3ClientError
from h3_client.stream import ClipStream
from minimax_h3.core.contracts import DENOISER_INSTANCES
from minimax_h3.serve.stubs import is_alive

pytestmark = pytest.mark.timeout(240)

HANGING_STEP = 30
SMALL = {"width": 64, "height": 64}
REQUEST = {"prompt": "a red ball", **SMALL, "num_inference_steps": 4}
HANGS = {**REQUEST, "num_inference_steps": HANGING_STEP + 5}


@pytest.fixture(scope="module")
def serving(
    tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Supervised]:
    words = ("--hang-timeout", "4", "--test-hang-at-step", str(HANGING_STEP))
    folder = tmp_path_factory.mktemp("guardian")
    with supervised(tiny_checkpoint, folder, *words, "--test-step-delay-ms", "20") as running:
        yield running


def test_the_wrong_port_is_named(serving: Supervised) -> None:
    http, grpc = serving.facts["http_url"], serving.facts["grpc_url"]
    with pytest.raises(H3ClientError, match=f"{grpc} speaks gRPC"):
        H3Client(grpc, "http").ping()
    with pytest.raises(H3ClientError, match=f"{http} speaks HTTP"):
        H3Client(http).ping()
    with pytest.raises(H3ClientError, match="speaks HTTP"), ClipStream(http, "a") as stream:
        next(iter(stream))


def test_a_long_request_id_is_named_and_not_repeated(serving: Supervised) -> None:
    for url, protocol in ((serving.facts["grpc_url"], "grpc"), (serving.facts["http_url"], "http")):
        with pytest.raises(H3ClientError) as refused:
            H3Client(url, protocol).generate(**REQUEST, request_id="i" * 5000)
        assert (
            refused.value.message == "request_id: 5,000 characters are not legal; legal: up to 128"
        )


def test_old_loops_do_not_pile_up_and_take_no_metric_along(serving: Supervised) -> None:
    for _ in range(3):
        serving.client().generate(**REQUEST)
    wait_for(lambda: serving.metric("h3_queue_wait_seconds_count") >= 3)
    for deaths in (1, 2):
        serving.stubs("denoiser")[-1].kill()
        wait_for(lambda deaths=deaths: serving.says("denoiser: serves again") >= deaths)
        assert serving.client().generate(**REQUEST).mp4
    wait_for(lambda: len(serving.stubs("denoiser")) == DENOISER_INSTANCES)
    assert serving.client().generate(**REQUEST).mp4
    wait_for(lambda: serving.metric("h3_queue_wait_seconds_count") >= 3 + 2 + 1)


def test_a_step_that_hangs_ends_its_job_and_its_dit(serving: Supervised) -> None:
    (hung,) = serving.stubs("dit_fl2va")
    with pytest.raises(H3ClientError) as ended:
        serving.client().generate(**HANGS, request_id="hangs")
    assert ended.value.status == "UNAVAILABLE"
    assert serving.client().job("hangs")["error"]["kind"] == "worker_lost"
    wait_for(lambda: serving.says("dit_fl2va: serves again"))
    assert not is_alive(hung)
    assert serving.says("dit_fl2va: is silent about job")
    assert serving.client().generate(**REQUEST).mp4


def test_a_killed_guardian_has_a_successor_and_no_job_hears_of_it(serving: Supervised) -> None:
    client = serving.client()
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(client.generate, **REQUEST | {"num_inference_steps": 20})
        for deaths in (1, 2):
            killed = guardian_of(serving)
            killed.kill()
            took_s = wait_for(lambda deaths=deaths: serving.says("took over") == deaths)
            assert took_s < 2.0
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
