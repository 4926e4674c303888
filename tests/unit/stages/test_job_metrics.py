"""What `jobs` reports, and how often."""

from collections import Counter

from minimax_h3.stages.job_metrics import EVERY_S, JobMetrics


class Kept:
    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        self.calls.append((name, amount, *labels.values()))

    set = observe = add


def test_ends_are_reported_once_and_states_not_too_often() -> None:
    kept, now, ended = Kept(), [0.0], Counter()
    metrics = JobMetrics(kept, lambda: now[0])
    states = {"queued": 0, "running": 2}

    metrics.after({"op": "progress"}, lambda: states, ended)
    assert kept.calls == [("h3_jobs", 0, "queued"), ("h3_jobs", 2, "running")]

    kept.calls.clear()
    ended["failed", "capacity"] += 2
    metrics.after({"op": "fail"}, lambda: states, ended)
    metrics.after({"op": "ping"}, lambda: 1 / 0, ended)
    assert kept.calls == [("h3_jobs_ended_total", 2, "failed", "capacity")]

    kept.calls.clear()
    now[0] += EVERY_S
    metrics.after({"op": "ping"}, lambda: states, ended)
    assert [call[0] for call in kept.calls] == ["h3_jobs", "h3_jobs"]


def test_a_lost_worker_is_counted() -> None:
    kept = Kept()
    metrics = JobMetrics(kept, lambda: 0.0)
    metrics.after({"op": "worker_lost", "model": "muxer"}, dict, {})
    assert kept.calls == [("h3_workers_lost_total", 1.0, "muxer")]
