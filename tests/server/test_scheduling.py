"""Who runs when, on a server with slow steps: turns, priorities, forecasts, deadlines, limits."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from watching import dit_status, step_times, until

from h3_client.client import GenerationResult, H3Client
from h3_client.errors import H3ClientError
from h3_client.stream import ClipStream

pytestmark = pytest.mark.quiet
DELAY_MS, TURNS, PLACES = 60, 3, 8
SMALL = {"width": 32, "height": 32, "num_frames": 107}  # what counts are its steps


@pytest.fixture(scope="module")
def server(module_server):
    return module_server(test_step_delay_ms=DELAY_MS, running_jobs=TURNS, max_jobs=PLACES)


@pytest.fixture
def client(server) -> H3Client:
    return H3Client(server.grpc_url)


def run(server, name: str, forwards: int, **fields: object) -> GenerationResult:
    return H3Client(server.grpc_url).generate(
        "p", request_id=name, num_inference_steps=forwards + 1, **SMALL, **fields
    )


def at_step(client: H3Client, name: str, step: int) -> bool:
    job = client.job(name)
    return bool(job.get("dit")) and job["step"] >= step


def loop_seconds(result: GenerationResult) -> float:
    return result.metadata["stages"]["denoiser"]["seconds"]


def test_deadlines(server, client: H3Client) -> None:
    # Without experience a job is let in, and stopped when its time is over.
    began = time.monotonic()
    with pytest.raises(H3ClientError, match=r"deadline_s: 1 s have passed") as late:
        run(server, "late", 60, deadline_s=1.0)
    assert 1.0 < time.monotonic() - began < 2.0
    assert late.value.status == "CANCELLED"
    assert client.job("late")["error"]["kind"] == "deadline_exceeded"
    # With experience it is refused at once.
    with pytest.raises(H3ClientError, match=r"deadline_s: 1 cannot be met; .* about") as refused:
        run(server, "never", 60, deadline_s=1.0)
    assert refused.value.status == "UNAVAILABLE"
    with (
        pytest.raises(H3ClientError, match="cannot be met") as refused,
        ClipStream(
            server.grpc_url, "p", {**SMALL, "num_inference_steps": 61, "deadline_s": 1.0}
        ) as stream,
    ):
        list(stream)
    assert refused.value.kind == "deadline_refused"
    assert run(server, "in time", 4, deadline_s=30.0).mp4
    # The steps of others count.
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(run, server, "busy", 60)
        until(lambda: at_step(client, "busy", 1))
        began = time.monotonic()
        with pytest.raises(H3ClientError, match="cannot be met"):
            run(server, "behind", 6, deadline_s=0.6)
        assert time.monotonic() - began < 1.0
        client.cancel("busy")
        with pytest.raises(H3ClientError):
            busy.result()
    assert client.ping()["active"] == 0
    assert dit_status(server)["sessions"] == 0


def test_the_textbook_timeline(server, client: H3Client) -> None:
    run(server, "warm", 2)
    steps_before = server.inference_count("dit_fl2va")
    with ThreadPoolExecutor(3) as pool:
        a = pool.submit(run, server, "A", 14)
        until(lambda: at_step(client, "A", 1))
        b = pool.submit(run, server, "B", 14)
        until(lambda: at_step(client, "B", 1))
        c = pool.submit(run, server, "C", 5)
        until(lambda: at_step(client, "B", 3))
        client.cancel("B")
        with pytest.raises(H3ClientError, match="was cancelled"):
            b.result()
        a.result()
        c.result()
    times = {name: step_times(server, name) for name in "ABC"}
    assert (len(times["A"]), len(times["C"])) == (14, 5)
    assert len(times["B"]) <= 5  # the cancel costs at most one step
    order = "".join(name for _, name in sorted((at, name) for name in "ABC" for at in times[name]))
    # A alone, A and B, all three, A and C, A alone; B costs nothing after its cancel.
    alone, left = order.index("B"), order.rindex("B")
    entered, ended = order.index("C"), order.rindex("C")
    assert set(order[:alone]) == set(order[ended + 1 :]) == {"A"}, order
    assert alone < entered < left < ended, order
    # In turn: a step that comes late on a busy machine lets one other pass, and no more.
    for names, span in (
        ("AB", order[alone:entered]),
        ("ABC", order[entered:left]),
        ("AC", order[left + 1 : ended]),
    ):
        counts = [span.count(name) for name in names]
        assert max(counts) - min(counts) <= 2, (span, order)
    calls = server.inference_count("dit_fl2va") - steps_before
    assert calls >= sum(map(len, times.values())) + 6  # each start and end
    assert dit_status(server)["sessions"] == 0


def test_two_long_jobs_share_fairly(server) -> None:
    forwards = 30
    solo = loop_seconds(run(server, "solo", forwards))
    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(lambda: (run(server, "first", forwards), time.monotonic() - began))
        time.sleep(0.5)
        second = pool.submit(lambda: (run(server, "second", forwards), time.monotonic() - began))
        ends = sorted([first.result()[1], second.result()[1]])
    beside = 1.0  # encoders, decoders and the way there
    assert ends[0] < (2 * solo - 0.5) * 1.25 + beside
    assert ends[1] < 2 * solo * 1.25 + beside


def test_a_short_job_is_not_stuck_behind_a_long_one(server, client: H3Client) -> None:
    solo = run(server, "short solo", 4).seconds
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(run, server, "long", 49)
        until(lambda: at_step(client, "long", 3))
        short = run(server, "short", 4).seconds
        assert not long.done()
        long.result()
    assert short < 3 * solo


def test_the_forecast_is_right_after_five_steps(server, client: H3Client) -> None:
    run(server, "teacher", 5)  # the first jobs teach what the stages around the loop cost
    forecasts = {}
    with ClipStream(server.grpc_url, "p", {**SMALL, "num_inference_steps": 50}) as stream:
        for event in stream:
            if event.get("stage") == "denoiser" and "expected_s" in event:
                forecasts[event["step"]] = event["expected_s"]
    truth = stream.result.seconds
    for step in range(5, 49):
        if step in forecasts:
            assert forecasts[step] == pytest.approx(truth, rel=0.2), step


def test_one_long_and_three_short_jobs_equal_their_solo_runs(server) -> None:
    wanted = [("l0", 20, 1), ("s1", 3, 2), ("s2", 3, 3), ("s3", 3, 4)]
    solo = {name: run(server, f"solo {name}", n, seed=seed).mp4 for name, n, seed in wanted}
    with ThreadPoolExecutor(4) as pool:
        jobs = {}
        for name, forwards, seed in wanted:
            jobs[name] = pool.submit(run, server, name, forwards, seed=seed)
            time.sleep(0.05)
        assert {name: job.result().mp4 for name, job in jobs.items()} == solo


def test_a_high_priority_enters_first(server, client: H3Client) -> None:
    with ThreadPoolExecutor(TURNS + 3) as pool:
        # One turn gets free, so that those who wait take it one after another.
        lengths = (20, *[60] * (TURNS - 1))
        jobs = [
            pool.submit(run, server, f"turn {index}", length)
            for index, length in enumerate(lengths)
        ]
        for index in range(TURNS):
            until(lambda index=index: at_step(client, f"turn {index}", 1))
        for name, priority in (("low", "low"), ("normal", "normal"), ("high", "high")):
            jobs.append(pool.submit(run, server, name, 2, priority=priority))
            until(lambda name=name: client.job(name).get("state") == "waiting")
        assert [client.job(name)["position"] for name in ("high", "normal", "low")] == [1, 2, 3]
        for job in jobs[TURNS:]:
            job.result()
        for index in range(1, TURNS):
            client.cancel(f"turn {index}")
    first_steps = [step_times(server, name)[0] for name in ("high", "normal", "low")]
    assert first_steps == sorted(first_steps)


def test_cancel_stops_the_job_within_a_step(server, client: H3Client) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, server, "stopped", 20)
        until(lambda: at_step(client, "stopped", 2))
        assert client.cancel("stopped")["cancelled"] is True
        began = time.monotonic()
        with pytest.raises(H3ClientError) as stopped:
            running.result()
        assert time.monotonic() - began < 1.0
    assert stopped.value.status == "CANCELLED"
    assert client.job("stopped")["state"] == "cancelled"
    assert client.ping()["active"] == 0
    assert run(server, "next", 2).mp4


def test_progress_is_seen_while_a_job_runs(server, client: H3Client) -> None:
    seen = []
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, server, "watched", 20)
        while not running.done():
            seen.append(client.job("watched"))
            time.sleep(0.05)
        running.result()
    steps = [job["step"] for job in seen if job.get("stage") == "denoiser"]
    assert len(set(steps)) > 5
    assert steps == sorted(steps)
    assert client.job("watched")["state"] == "finished"


def test_a_full_server_refuses_at_once_and_loses_nothing(server, client: H3Client) -> None:
    names = [f"place {index}" for index in range(PLACES)]
    with ThreadPoolExecutor(PLACES) as pool:
        jobs = [pool.submit(run, server, name, 60) for name in names]
        until(lambda: client.ping()["active"] == PLACES)
        until(lambda: client.ping()["waiting"] == PLACES - TURNS)
        positions = [client.job(name)["position"] for name in names]
        assert sorted(positions) == [*[0] * TURNS, *range(1, PLACES - TURNS + 1)]
        began = time.perf_counter()
        with pytest.raises(H3ClientError) as refusal:
            run(server, "one too many", 3)
        assert time.perf_counter() - began < 0.5
        assert refusal.value.status == "UNAVAILABLE"
        assert f"{PLACES} jobs are active" in str(refusal.value)
        for name in reversed(names):
            client.cancel(name)
        stopped = [job.exception() for job in jobs]
    assert all(isinstance(error, H3ClientError) for error in stopped)
    assert any("was cancelled; stopped in the queue" in str(error) for error in stopped)
    assert client.ping()["active"] == 0
    assert run(server, "afterwards", 1).mp4


def test_a_request_id_in_use_is_refused(server, client: H3Client) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, server, "mine", 10)
        until(lambda: not client.job("mine").get("unknown"))
        with pytest.raises(H3ClientError, match="request id: 'mine' is in use"):
            run(server, "mine", 2)
        running.result()
    assert run(server, "mine", 2).mp4
