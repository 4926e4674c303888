"""The open-loop generator against senders that answer as told."""

import statistics
import threading
import time

import pytest

from h3_client.errors import H3ClientError
from h3_client.load import Outcome, percentiles, report, run_load


def test_requests_leave_at_their_time_whatever_the_answers_do() -> None:
    sent: list[float] = []
    release = threading.Event()

    def stuck(index: int) -> None:
        sent.append(time.monotonic())
        release.wait(5)

    threading.Timer(1.0, release.set).start()
    outcomes = run_load(stuck, rate=50, duration_s=0.8)
    assert len(outcomes) == len(sent)
    assert 20 < len(sent) < 70  # a closed loop would have sent one
    assert max(sent) - min(sent) < 0.95
    assert statistics.median(outcome.late_s for outcome in outcomes) < 0.05


def test_turned_away_is_not_failed() -> None:
    kinds = ("ok", "UNAVAILABLE", "INTERNAL")

    def send(index: int) -> float | None:
        if kinds[index % 3] != "ok":
            raise H3ClientError(kinds[index % 3], "told so")
        return 0.25

    told = report(run_load(send, rate=300, duration_s=0.3), 300, 0.3)
    statuses = told["statuses"]
    assert set(statuses) == set(kinds)  # type: ignore[call-overload]
    assert told["accepted"] == statuses["ok"]  # type: ignore[index]
    assert told["rejected"] == statuses["UNAVAILABLE"]  # type: ignore[index]
    assert told["failed"] == statuses["INTERNAL"]  # type: ignore[index]
    assert told["first_event_s"]["p50"] == 0.25  # type: ignore[index]


def test_the_same_seed_gives_the_same_load() -> None:
    counts = {len(run_load(lambda index: None, rate=200, duration_s=0.2, seed=4)) for _ in "ab"}
    assert len(counts) == 1


def test_percentiles() -> None:
    assert percentiles([]) is None
    assert percentiles([2.0]) == {"p50": 2.0, "p95": 2.0, "p99": 2.0, "max": 2.0}
    told = percentiles([float(value) for value in range(101)])
    assert told == pytest.approx({"p50": 50, "p95": 95, "p99": 99, "max": 100})


def test_an_empty_report_is_one() -> None:
    told = report([Outcome("UNAVAILABLE", 0.001, 0.0)], 1, 1)
    assert told["latency_s"] is None
    assert told["accepted"] == 0
