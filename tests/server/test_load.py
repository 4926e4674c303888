"""More than the server can do, and many requests at once."""

import random
import statistics
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from watching import dit_status, seconds_when_full, until

from h3_client.client import H3Client
from h3_client.errors import H3ClientError
from h3_client.load import report, run_load
from h3_client.stream import ClipStream
from minimax_h3.media.check import frame_hashes

pytestmark = pytest.mark.quiet
TINY = {"width": 32, "height": 32, "num_frames": 107, "num_inference_steps": 4}


@pytest.mark.soak
def test_overload_rejects_the_excess_and_keeps_its_pace(module_server, whole_soak: bool) -> None:
    places = 3
    server = module_server(running_jobs=places, max_jobs=places, test_step_delay_ms=100)
    client = H3Client(server.grpc_url)
    fields = TINY | {"num_inference_steps": 8}

    def send(index: int) -> None:
        client.generate("p", seed=index, **fields)

    send(0)
    # Full but not overloaded: as many clients as places, each waits for its answer.
    median = statistics.median(seconds_when_full(send, places, turns=3))
    rate = 10 * places / median
    duration = 60.0 if whole_soak else 8.0
    told = report(run_load(send, rate, duration), rate, duration)
    print(median, told)  # noqa: T201
    assert told["failed"] == 0
    assert told["rejected"] > 3 * told["accepted"]
    assert told["rejection_s"]["p50"] < 0.05
    assert told["latency_s"]["p50"] < 1.25 * median
    assert client.ping()["active"] == 0


@pytest.fixture(scope="module")
def wide_server(module_server, whole_soak: bool):
    return module_server(running_jobs=4, max_jobs=24 if whole_soak else 12, stream_jobs=200)


def test_answers_never_cross_when_clients_give_up(wide_server) -> None:
    server = wide_server
    client = H3Client(server.grpc_url)
    solo = {seed: client.generate("p", seed=seed, **TINY).mp4 for seed in range(3)}
    rng, wrong = random.Random(1), []

    def ask(index: int) -> None:
        limit = rng.choice((0.05, 0.3, None, None))
        try:
            made = client.generate("p", seed=index % 3, timeout_s=limit, **TINY)
        except H3ClientError as error:
            if error.status != "DEADLINE_EXCEEDED":
                wrong.append(str(error))
            return
        if made.mp4 != solo[index % 3]:
            wrong.append(f"{index} got another answer")

    # Half as many clients as places: a job whose client left holds its place for a moment.
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(ask, range(30)))
    assert wrong == []
    until(lambda: client.ping()["active"] == 0, 60)
    assert dit_status(server)["sessions"] == 0


@pytest.mark.soak
def test_many_at_once(wide_server, whole_soak: bool) -> None:
    requests = 200 if whole_soak else 16
    server = wide_server
    client = H3Client(server.grpc_url)
    expected = frame_hashes(client.generate("p", **TINY).mp4[0])
    wrong: list[object] = []

    def ask(index: int) -> None:
        fields = TINY | {"seed": 42}
        with ClipStream(server.grpc_url, "p", fields, silence_s=20) as stream:
            list(stream)
        if frame_hashes(stream.result.mp4[0]) != expected:
            wrong.append(index)

    with ThreadPoolExecutor(requests) as pool:
        list(pool.map(ask, range(requests)))
    assert wrong == []
    assert client.ping()["active"] == 0
    assert dit_status(server)["sessions"] == 0
    shared = psutil.Process(server.process.pid).num_fds()
    for _ in range(5):
        client.generate("p", **TINY)
    assert abs(psutil.Process(server.process.pid).num_fds() - shared) < 8
