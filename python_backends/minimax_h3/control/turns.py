"""Who is next: three priorities, and nobody waits for ever."""

from collections.abc import Container
from dataclasses import dataclass

MAX_PASSED_OVER = 10
RANKS = ("low", "normal", "high")


@dataclass(slots=True, eq=False)
class _Waiting:
    job_id: str
    rank: int
    passed_over: int = 0


class TurnQueue:
    """Jobs that wait for something that is given to one at a time.

    The highest priority enters first, the longest waiting of equals. A job that `MAX_PASSED_OVER`
    later ones have overtaken enters before all others.
    """

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, job_id: str) -> bool:
        return any(entry.job_id == job_id for entry in self._waiting)

    def push(self, job_id: str, priority: str) -> None:
        """Join at the end; a job that waits already keeps its place."""
        if job_id not in self:
            self._waiting.append(_Waiting(job_id, RANKS.index(priority)))

    def pop(self, blocked: Container[str] = ()) -> str | None:
        """Take the next one out; None when nobody can enter.

        Args:
            blocked: those that cannot enter now; they keep their place, and nobody overtakes them.
        """
        able = [entry for entry in self._waiting if entry.job_id not in blocked]
        if not able:
            return None
        best = _next_index(able)
        for entry in able[:best]:
            entry.passed_over += 1
        self._waiting.remove(able[best])
        return able[best].job_id

    def remove(self, job_id: str) -> None:
        """Leave without a turn."""
        self._waiting = [entry for entry in self._waiting if entry.job_id != job_id]

    def order(self) -> list[str]:
        """Ids in the order in which they enter if nobody else joins."""
        ahead = TurnQueue()
        ahead._waiting = [
            _Waiting(entry.job_id, entry.rank, entry.passed_over) for entry in self._waiting
        ]
        return [job_id for _ in range(len(ahead)) if (job_id := ahead.pop())]


def _next_index(waiting: list[_Waiting]) -> int:
    for index, entry in enumerate(waiting):
        if entry.passed_over >= MAX_PASSED_OVER:
            return index
    return max(range(len(waiting)), key=lambda index: (waiting[index].rank, -index))
