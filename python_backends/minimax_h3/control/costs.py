"""What work costs, learned from the jobs of this server, and when jobs will be done.

Running jobs take turns at the DiT step by step, so a job's end follows from the steps that all of
them have left and from what one step of each takes.
"""

import statistics
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

# An estimate is the median of the newest measurements, so that neither one slow step nor one slow
# job moves it; five new ones of nine do.
NEWEST = 9
SURE = 3  # measurements before an estimate may refuse a job: the first ones are often cold
REACH = 4.0  # times larger or smaller than a size that ran, to the same end
KEPT_SIZES = 64


@dataclass(frozen=True, slots=True)
class Load:
    """The rest of one job at the DiT."""

    job_id: str
    steps_left: int
    step_s: float


class SizeTable:
    """Seconds of one kind of work by packed rows; the sizes used least recently are forgotten."""

    def __init__(self) -> None:
        self._seconds: OrderedDict[int, deque[float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seconds)

    def learn(self, rows: int, seconds: float) -> None:
        """One measurement."""
        rows = max(rows, 1)
        self._seconds.setdefault(rows, deque(maxlen=NEWEST)).append(seconds)
        self._seconds.move_to_end(rows)
        if len(self._seconds) > KEPT_SIZES:
            self._seconds.popitem(last=False)

    def estimate(self, rows: int, least: int, reach: float) -> float | None:
        """Seconds at a size, scaled from the nearest that ran; None when nothing is known.

        Args:
            rows: the size.
            least: measurements of a size that count as knowing it.
            reach: how many times larger or smaller that size may be.
        """
        rows = max(rows, 1)
        known = [size for size, seconds in self._seconds.items() if len(seconds) >= least]
        nearest = min(known, key=lambda size: abs(size - rows), default=0)
        if not nearest or not 1 / reach <= rows / nearest <= reach:
            return None
        return statistics.median_low(self._seconds[nearest]) * rows / nearest


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of a forward and of the stages around the loop.

    Attributes:
        steps: forwards, alone on the device.
        after: from the last forward to the finished files; rows over all clips.
        before: from admission to the first wait for a turn.
        least, reach: what an estimate needs, see `SizeTable.estimate`.
    """

    steps: SizeTable = field(default_factory=SizeTable)
    after: SizeTable = field(default_factory=SizeTable)
    before: deque[float] = field(default_factory=lambda: deque(maxlen=NEWEST))
    least: int = 1
    reach: float = float("inf")

    def sure(self) -> "CostModel":
        """The same experience for a decision that cannot be taken back: only well-known costs."""
        return replace(self, least=SURE, reach=REACH)

    def step_s(self, rows: int) -> float | None:
        """One forward of `rows` packed rows, or None before any did that tells."""
        return self.steps.estimate(rows, self.least, self.reach)

    def before_s(self) -> float:
        """Seconds before the first wait for a turn; 0 before jobs got there."""
        known = len(self.before) >= self.least
        return statistics.median_low(self.before) if known else 0.0

    def after_s(self, rows: int) -> float:
        """Seconds after the last forward; 0 before any job was done that tells."""
        return self.after.estimate(rows, self.least, self.reach) or 0.0


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
