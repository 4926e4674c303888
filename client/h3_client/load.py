"""Open-loop load: requests leave at their time, whatever became of those before them.

A closed-loop generator waits for answers and so never overloads a server; this one does.
"""

import itertools
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from h3_client.errors import UNAVAILABLE, H3ClientError

MOST_AT_ONCE = 512


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request.

    Attributes:
        status: `ok`, or the status of the error.
        seconds: from sending to the answer.
        late_s: how much later than planned it left; large when the client is the bottleneck.
        first_event_s: to the first event, of a stream.
    """

    status: str
    seconds: float
    late_s: float
    first_event_s: float | None = None


Send = Callable[[int], float | None]


def run_load(send: Send, rate: float, duration_s: float, seed: int = 0) -> list[Outcome]:
    """Send requests at a mean rate with random gaps (a Poisson process) and wait for all answers.

    Args:
        send: sends request number i and blocks until its answer; returns the seconds to the first
            event, if there was one. Raises H3ClientError.
        rate: requests a second.
        duration_s: for how long new requests leave.
        seed: of the gaps.
    """
    outcomes: list[Outcome] = []
    lock = threading.Lock()

    def one(index: int, planned: float) -> None:
        began = time.monotonic()
        first: float | None = None
        try:
            first = send(index)
            status = "ok"
        except H3ClientError as error:
            status = error.status
        outcome = Outcome(status, time.monotonic() - began, began - planned, first)
        with lock:
            outcomes.append(outcome)

    gaps = random.Random(seed)
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        start = planned = time.monotonic()
        for index in itertools.count():
            planned += gaps.expovariate(rate)
            if planned - start > duration_s:
                break
            time.sleep(max(planned - time.monotonic(), 0.0))
            pool.submit(one, index, planned)
    return outcomes


def report(outcomes: Sequence[Outcome], rate: float, duration_s: float) -> dict[str, object]:
    """Counts and percentiles, ready for JSON; seconds."""
    accepted = [outcome for outcome in outcomes if outcome.status == "ok"]
    rejected = [outcome for outcome in outcomes if outcome.status == UNAVAILABLE]
    first = [outcome.first_event_s for outcome in accepted if outcome.first_event_s is not None]
    return {
        "rate": rate,
        "duration_s": duration_s,
        "sent": len(outcomes),
        "accepted": len(accepted),
        "rejected": len(rejected),
        "failed": len(outcomes) - len(accepted) - len(rejected),
        "statuses": dict(Counter(outcome.status for outcome in outcomes)),
        "throughput": round(len(accepted) / duration_s, 4),
        "latency_s": percentiles([outcome.seconds for outcome in accepted]),
        "rejection_s": percentiles([outcome.seconds for outcome in rejected]),
        "first_event_s": percentiles(first),
        "late_s": percentiles([outcome.late_s for outcome in outcomes]),
    }


def percentiles(values: Sequence[float]) -> Mapping[str, float] | None:
    """p50, p95, p99 and the largest; None without values."""
    if not values:
        return None
    cuts = statistics.quantiles(values, n=100, method="inclusive") if len(values) > 1 else []
    named = {f"p{cut}": cuts[cut - 1] if cuts else values[0] for cut in (50, 95, 99)}
    return {name: round(value, 6) for name, value in {**named, "max": max(values)}.items()}
