"""A cancel at each point of a job, by each way there is: work stops, nothing stays."""

import contextlib
import http.client
import json
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from running_server import RunningServer, running
from watching import dit_status, until

from h3_client.client import H3Client
from h3_client.errors import H3ClientError
from h3_client.stream import ClipStream

STEPS = 8
SMALL = {"width": 64, "height": 64, "num_inference_steps": STEPS + 1}
STAGES = (
    *("preprocess", "text_encoder", "condition_encoder", "denoiser"),
    *("video_decoder", "audio_decoder", "muxer"),
)
# Point: the stage that is awaited there, the step to wait for, the first stage that must not run.
POINTS = {
    "queued": (None, None, "video_decoder"),
    "text": ("text_encoder", None, "denoiser"),
    "condition": ("condition_encoder", None, "denoiser"),
    "first step": (None, 0, "video_decoder"),
    "middle step": (None, STEPS // 2, "video_decoder"),
    "last step": (None, STEPS - 1, "muxer"),  # its decoders find the cancel
    "decode": ("video_decoder", None, "muxer"),
    "mux": ("muxer", None, None),
}


@pytest.fixture(scope="module")
def server(serve_settings, tiny_checkpoint: Path) -> Iterator[RunningServer]:
    stage = {"test_step_delay_ms": 60, "test_stage_delay_ms": 250, "running_jobs": 1, "max_jobs": 3}
    with running(serve_settings(tiny_checkpoint, **stage), in_haste=True) as ready:
        yield ready


class UnaryWay:
    """A unary gRPC request, cancelled by the id that its client sent."""

    def __init__(self, server, name: str) -> None:
        self.client, self.name = H3Client(server.grpc_url), name
        self.pool = ThreadPoolExecutor(1)
        self.answer: Future = self.pool.submit(self.client.generate, "p", request_id=name, **SMALL)

    def cancel(self) -> None:
        assert self.client.cancel(self.name)["cancelled"]

    def ended(self) -> None:
        with pytest.raises(H3ClientError) as stopped:
            self.answer.result(20)
        assert stopped.value.status == "CANCELLED"
        self.pool.shutdown()


class JobsWay(UnaryWay):
    """The same, cancelled by the job id that the server made."""

    def cancel(self) -> None:
        job_id = self.client.job(self.name)["job_id"]
        assert H3Client(self.server_url, "http").cancel(job_id)["cancelled"]

    def __init__(self, server, name: str) -> None:
        self.server_url = server.http_url
        super().__init__(server, name)


class GrpcStreamWay:
    """A gRPC stream whose client leaves."""

    def __init__(self, server, name: str) -> None:
        self.stream = ClipStream(server.grpc_url, "p", SMALL, request_id=name)
        self.stream.__enter__()

    def cancel(self) -> None:
        self.stream.__exit__(None, None, None)

    def ended(self) -> None:
        assert self.stream.result is None


class HttpStreamWay:
    """An HTTP stream whose client closes the socket."""

    def __init__(self, server, name: str) -> None:
        self.connection = http.client.HTTPConnection(server.http_url, timeout=30)
        body = {name.upper(): value for name, value in SMALL.items()}
        self.connection.request(
            "POST",
            "/v2/models/minimax_h3_stream/generate_stream",
            json.dumps({**body, "PROMPT": "p", "id": name, "RESULT_AS": "handle"}),
        )
        self.answer = self.connection.getresponse()

    def cancel(self) -> None:
        self.answer.close()
        self.connection.close()

    def ended(self) -> None:
        pass


WAYS = {"unary": UnaryWay, "jobs": JobsWay, "grpc stream": GrpcStreamWay, "http": HttpStreamWay}


@contextmanager
def at_point(server, client: H3Client, name: str, point: str) -> Iterator[Callable[[], bool]]:
    """Arrange for a job to be caught at a point; yields whether it is there."""
    stage, step, _ = POINTS[point]
    with _blocker(server, client) if point == "queued" else contextlib.nullcontext():
        if point == "queued":
            yield lambda: client.job(name).get("state") == "waiting"
        elif stage is not None:
            yield lambda: stage in client.job(name).get("awaiting", ())
        else:
            yield lambda: (job := client.job(name)).get("dit") and job["step"] >= step


@contextmanager
def _blocker(server, client: H3Client) -> Iterator[None]:
    """Another job that has the only turn."""
    fields = SMALL | {"num_inference_steps": 200}
    with ClipStream(server.grpc_url, "p", fields, request_id="blocker"):
        until(lambda: client.job("blocker").get("dit"))
        yield
    until(lambda: client.job("blocker").get("state") == "cancelled")


def _pairs() -> list[object]:
    """Every point by every way; `make test` takes each point by one, and each way twice."""
    ways, pairs = list(WAYS), []
    for index, point in enumerate(POINTS):
        for way in ways:
            every_run = way == ways[index % len(ways)]
            marks = () if every_run else pytest.mark.whole_soak
            pairs.append(pytest.param(point, way, marks=marks, id=f"{point}-{way}"))
    return pairs


@pytest.mark.parametrize(("point", "way"), _pairs())
def test_cancel(server, point: str, way: str) -> None:
    client, name = H3Client(server.grpc_url), f"{point} {way}"
    later = POINTS[point][2]
    before = {stage: server.inference_count(stage) for stage in STAGES}
    with at_point(server, client, name, point) as is_there:
        job = WAYS[way](server, name)
        until(is_there)
        job.cancel()
        until(lambda: client.job(name)["cancel"], 2)
        steps_then = client.job(name)["step"]
    until(lambda: client.job(name)["state"] == "cancelled", 5)
    job.ended()
    described = client.job(name)
    assert described["error"]["kind"] == "cancelled"
    if described["stage"] == "denoiser":
        assert described["step"] <= steps_then + 1  # at most one step is wasted
    until(lambda: dit_status(server)["sessions"] == 0, 2)
    assert client.ping()["active"] == 0
    for stage in STAGES[STAGES.index(later) :] if later is not None else ():
        assert server.inference_count(stage) == before[stage], stage
    # Triton counts a request after its answer has gone: the next test is not to find these.
    entered = [described["stage"], *(["denoiser"] if point == "queued" else [])]  # the blocker's
    until(lambda: all(server.inference_count(s) >= before[s] + entered.count(s) for s in entered))


@pytest.mark.soak
def test_a_cancel_at_any_moment_leaves_no_work_and_no_file(server, whole_soak: bool) -> None:
    rng, client = random.Random(3), H3Client(server.grpc_url)
    for index in range(100 if whole_soak else 6):
        name = f"random {index}"
        job = UnaryWay(server, name)
        timer = threading.Timer(rng.uniform(0, 1.2), job.client.cancel, [name, 5.0])
        timer.start()
        with contextlib.suppress(H3ClientError):
            job.answer.result(20)
        timer.join()
        state = client.job(name).get("state")
        if state == "cancelled":
            with pytest.raises(H3ClientError, match="no result"):
                client.result(name)
    assert client.ping()["active"] == 0
    assert dit_status(server)["sessions"] == 0


@pytest.mark.whole_soak
@pytest.mark.slow
@pytest.mark.timeout(0)
def test_memory_stays_flat_over_cancelled_jobs(server) -> None:
    jobs = 200
    client = H3Client(server.grpc_url)

    def cancelled(index: int) -> None:
        name = f"many {index}"
        job = UnaryWay(server, name)
        until(lambda: client.job(name).get("step", 0) >= 1 or job.answer.done())
        client.cancel(name)
        with contextlib.suppress(H3ClientError):
            job.answer.result(20)

    for index in range(jobs // 2):
        cancelled(index)
    before = _resident(server)
    for index in range(jobs // 2, jobs):
        cancelled(index)
    after = _resident(server)
    grown = {pid: after[pid] - before[pid] for pid in before}
    assert before.keys() == after.keys()
    # Below one percent, or a few pages of allocator noise in the smallest processes.
    assert {
        pid: size for pid, size in grown.items() if size > max(before[pid] * 0.01, 2 * 1024**2)
    } == {}


def _resident(server) -> dict[int, int]:
    root = psutil.Process(server.process.pid)
    return {
        process.pid: process.memory_info().rss for process in [root, *root.children(recursive=True)]
    }
