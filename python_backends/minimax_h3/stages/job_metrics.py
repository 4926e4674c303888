"""What the `jobs` model reports about its table: unfinished jobs, ended jobs, lost workers."""

import time
from collections import Counter
from collections.abc import Callable, Mapping

from minimax_h3.core.metrics import Meter

EVERY_S = 0.5  # an operation takes less than a millisecond, and most change nothing here


class JobMetrics:
    """Reports after operations, at most every half second.

    Args:
        meter: where to.
        clock: monotonic seconds.
    """

    def __init__(self, meter: Meter, clock: Callable[[], float] = time.monotonic) -> None:
        self._meter = meter
        self._clock = clock
        self._next = clock()
        self._told: Counter[tuple[str, str]] = Counter()

    def after(
        self,
        operation: Mapping[str, object],
        states: Callable[[], Mapping[str, int]],
        ended: Mapping[tuple[str, str], int],
    ) -> None:
        """Report what changed.

        Args:
            operation: the one that was carried out.
            states: unfinished jobs by state, asked only when it is time for a report.
            ended: jobs that ended so far, by state and kind of error.
        """
        if operation.get("op") == "worker_lost":
            self._meter.add("h3_workers_lost_total", model=str(operation.get("model")))
        for (state, kind), count in ended.items():
            if count > self._told[state, kind]:
                fresh = count - self._told[state, kind]
                self._meter.add("h3_jobs_ended_total", fresh, state=state, kind=kind)
                self._told[state, kind] = count
        if self._clock() >= self._next:
            self._next = self._clock() + EVERY_S
            for state, count in states().items():
                self._meter.set("h3_jobs", count, state=state)
