"""Old processes of a model with several instances, after it got new ones.

Triton binds a request to a model's processes when it arrives, so the old ones are kept for the jobs
that were there, and Triton ends them afterwards: but not those beside one that died, which stay,
idle, for as long as the server lives.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import psutil

from minimax_h3.serve.progress_watch import JobView
from minimax_h3.serve.stubs import is_alive, kill_all

REGISTERED_S = 5.0  # a request that came before the new processes is known as a job by then


@dataclass(slots=True)
class _Generation:
    """Processes that got successors.

    Attributes:
        stubs: the processes.
        replaced_at: when the new ones served.
        bound: ids of the jobs that may need them; None until all such are known.
    """

    stubs: list[psutil.Process]
    replaced_at: float
    bound: frozenset[str] | None = None


class Retirement:
    """Ends old processes when no job can need them any more; `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._generations: list[_Generation] = []

    def add(self, stubs: Iterable[psutil.Process]) -> None:
        """Processes that have successors now."""
        living = [stub for stub in stubs if is_alive(stub)]
        if living:
            self._generations.append(_Generation(living, self._clock()))

    def look(self, jobs: Iterable[JobView]) -> list[int]:
        """End those that nobody needs.

        Args:
            jobs: all unfinished ones.

        Returns:
            The processes that were ended.
        """
        ids = frozenset(job.job_id for job in jobs)
        ended: list[int] = []
        for generation in list(self._generations):
            if generation.bound is None and self._clock() - generation.replaced_at > REGISTERED_S:
                generation.bound = ids
            if generation.bound is None or generation.bound & ids:
                continue
            living = [stub for stub in generation.stubs if is_alive(stub)]
            kill_all(living)
            ended += [stub.pid for stub in living]
            self._generations.remove(generation)
        return ended
