"""When the unfinished jobs of a server will be done."""

from collections.abc import Iterable, Sequence

from minimax_h3.control.costs import CostModel, Load, finish_times
from minimax_h3.control.job import ACTIVE, Job


def forecast(
    jobs: Iterable[Job], order: Sequence[str], costs: CostModel, places: int, now: float
) -> dict[str, float]:
    """Expected seconds from the start of each unfinished job to its finished files.

    Args:
        jobs: all jobs of the table.
        order: ids of the jobs without a turn, in the order in which they get one.
        costs: what work has cost so far.
        places: turns that are given at the same time.
        now: the clock's seconds.

    Returns:
        Seconds by job id; a job whose steps have no known cost is left out.
    """
    active = {job.job_id: job for job in jobs if job.state in ACTIVE}
    waiting = [active[job_id] for job_id in order if job_id in active]
    running = [job for job in active.values() if job.slot is not None]
    ends = finish_times(
        [load for job in running if (load := load_of(job, costs))],
        [load for job in waiting if (load := load_of(job, costs))],
        places,
    )
    expected: dict[str, float] = {}
    for job in active.values():
        elapsed, after = now - job.created_at, costs.after_s(job.rows * job.num_clips)
        if job.loop_ended_at is not None:
            expected[job.job_id] = max(job.loop_ended_at - job.created_at + after, elapsed)
        elif job.job_id in ends:
            begun = job.asked_turn_at is not None
            before = 0.0 if begun else max(costs.before_s() - elapsed, 0.0)
            expected[job.job_id] = elapsed + max(ends[job.job_id], before) + after
    return expected


def load_of(job: Job, costs: CostModel) -> Load | None:
    """What is left of a job at the DiT, if its cost is known."""
    step_s = costs.step_s(job.rows)
    return None if step_s is None else Load(job.job_id, job.steps_left, step_s)


def round_s(jobs: Iterable[Job], costs: CostModel) -> float | None:
    """Seconds of one round at the DiT: one step of every job that has a turn."""
    loads = [load_of(job, costs) for job in jobs if job.slot is not None]
    known = [load.step_s for load in loads if load is not None]
    return sum(known) if known and len(known) == len(loads) else None
