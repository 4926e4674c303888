"""What work costs, learned from the jobs of this server, and when jobs will be done.

Running jobs take turns at the DiT step by step, so a job's end follows from the steps that all of
them have left and from what one step of each takes.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NEWEST = 0.3  # weight of the newest measurement
KEPT_SIZES = 64


@dataclass(frozen=True, slots=True)
class Load:
    """The rest of one job at the DiT."""

    job_id: str
    steps_left: int
    step_s: float


class CostModel:
    """Seconds of a forward and of the stages around the loop."""

    def __init__(self) -> None:
        self._step_s: OrderedDict[int, float] = OrderedDict()
        self._before_s: float | None = None
        self._after_s_per_row: float | None = None

    def learn_step(self, rows: int, seconds: float) -> None:
        """One forward of `rows` packed rows, alone on the device."""
        self._step_s[rows] = _mean(self._step_s.get(rows), seconds)
        self._step_s.move_to_end(rows)
        if len(self._step_s) > KEPT_SIZES:
            self._step_s.popitem(last=False)

    def learn_before(self, seconds: float) -> None:
        """From admission to the first wait for a turn."""
        self._before_s = _mean(self._before_s, seconds)

    def learn_after(self, rows: int, seconds: float) -> None:
        """From the last forward to the finished files; `rows` over all clips."""
        self._after_s_per_row = _mean(self._after_s_per_row, seconds / max(rows, 1))

    def step_s(self, rows: int) -> float | None:
        """One forward of `rows` rows; from the nearest size that ran, or None before any did."""
        if rows in self._step_s:
            return self._step_s[rows]
        if not self._step_s:
            return None
        nearest = min(self._step_s, key=lambda known: abs(known - rows))
        return self._step_s[nearest] * rows / max(nearest, 1)

    def before_s(self) -> float:
        """Seconds before the first wait for a turn; 0 before any job got there."""
        return self._before_s or 0.0

    def after_s(self, rows: int) -> float:
        """Seconds after the last forward; 0 before any job was done."""
        return (self._after_s_per_row or 0.0) * rows


def _mean(before: float | None, newest: float) -> float:
    return newest if before is None else before + NEWEST * (newest - before)


def finish_times(running: Iterable[Load], waiting: Sequence[Load], places: int) -> dict[str, float]:
    """Seconds from now until each job has done its last step.

    Args:
        running: jobs that have a turn; each round runs one step of each.
        waiting: jobs that get a turn, in this order, as one becomes free.
        places: turns that are given at the same time.
    """
    active = {load.job_id: load for load in running}
    left = {load.job_id: load.steps_left for load in [*active.values(), *waiting]}
    queue = list(waiting)
    done: dict[str, float] = {}
    now = 0.0
    while active or queue:
        while queue and len(active) < places:
            load = queue.pop(0)
            active[load.job_id] = load
        rounds = min(left[job_id] for job_id in active)
        now += rounds * sum(load.step_s for load in active.values())
        for job_id in list(active):
            left[job_id] -= rounds
            if left[job_id] <= 0:
                done[job_id] = now
                del active[job_id]
    return done
