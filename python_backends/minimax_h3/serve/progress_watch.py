"""Whether a busy model works or hangs, judged by the jobs that wait for a word from it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

STEP_FACTOR = 5.0  # a job's steps differ little; a hung one is silent for ever


@dataclass(frozen=True, slots=True)
class JobView:
    """What the supervisor needs to know of an unfinished job.

    Attributes:
        job_id: as `jobs` knows it.
        stage: where it stands.
        models: those that owe the next word about it.
        loop_pid: process that runs its loop, or 0.
        silent_s: seconds since anybody spoke of it.
        expected_s: seconds that a word takes by the job's own steps so far, or None.
    """

    job_id: str
    stage: str
    models: frozenset[str]
    loop_pid: int
    silent_s: float
    expected_s: float | None

    @classmethod
    def of(cls, described: Mapping[str, object]) -> "JobView":
        """From an entry of `jobs`' list."""
        awaiting, dit = described.get("awaiting"), str(described.get("dit") or "")
        models = {str(model) for model in awaiting} if isinstance(awaiting, list) else set()
        return cls(
            job_id=str(described.get("job_id", "")),
            stage=str(described.get("stage", "")),
            models=frozenset(models | ({dit} if dit else set())),
            loop_pid=int(_number(described.get("loop_pid")) or 0),
            silent_s=_number(described.get("stamp_age_s")) or 0.0,
            expected_s=_number(described.get("expected_step_s")),
        )


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a job may be silent.

    Attributes:
        least_s: never judged before this.
        unknown_s: in a stage that has no estimate: the first step, encoders, a decoded clip.
    """

    least_s: float
    unknown_s: float

    def limit_s(self, job: JobView) -> float:
        """Most seconds of silence of a job that works."""
        if job.expected_s is None or job.stage != "denoiser":
            return max(self.least_s, self.unknown_s)
        return max(self.least_s, STEP_FACTOR * job.expected_s)


def busy_models(jobs: Iterable[JobView]) -> frozenset[str]:
    """Models that some job waits for; a probe would queue behind its work."""
    return frozenset(model for job in jobs for model in job.models)


def overdue(jobs: Iterable[JobView], patience: Patience) -> list[JobView]:
    """Jobs that have been silent for longer than their own steps explain."""
    return [job for job in jobs if job.models and job.silent_s > patience.limit_s(job)]


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
