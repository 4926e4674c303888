"""The jobs of a server and what they wait for: state, without the operations on it."""

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from minimax_h3.control.costs import CostModel
from minimax_h3.control.forecast import forecast, round_s
from minimax_h3.control.job import ACTIVE, CANCELLED, FAILED, PLACED, QUEUED, RUNNING, WAITING, Job
from minimax_h3.control.operation import Operation, choice, count, flag, seconds, word
from minimax_h3.control.turns import RANKS, TurnQueue
from minimax_h3.core.contracts import ENSEMBLE_STEPS, ROUTES
from minimax_h3.core.errors import CancelledError, H3Error, WorkerLostError

Answer = dict[str, object]

KEEP_ENDED_S = 3600.0
KEEP_ENDED = 100
KEEP_TIMELINES = 20  # of ended jobs
EXPIRE_EVERY_S = 1.0
KEEP_ORPHANS = 1000


@dataclass(frozen=True, slots=True)
class Limits:
    """What a table admits.

    Attributes:
        running_jobs: turns at the DiT that are given at the same time.
        max_jobs: jobs that may have a place: running, or waiting for a turn.
        client_jobs: unfinished jobs of one named client.
        stale_s: an unfinished job untouched for longer is ended as failed, so that a worker that
            died without a word does not hold its place for ever.
    """

    running_jobs: int
    max_jobs: int
    client_jobs: int
    stale_s: float


class JobRegistry:
    """All jobs of one server.

    Attributes:
        limits: what is admitted.
        jobs: by id, oldest first; ended ones for a while.
        places: streamed jobs that wait for a place.
        turns: jobs that have a place and wait for a turn at the DiT.
        costs: what work has cost so far.
        ended: jobs that ended so far, by state and kind of error.
        away: models without a process, which the supervisor starts again.
        orphans: sessions whose job ended while its loop could not end them; oldest first.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self.clock = clock
        self.jobs: dict[str, Job] = {}
        self.places = TurnQueue()
        self.turns = TurnQueue()
        self.costs = CostModel()
        self.orphans: dict[str, None] = {}
        self.ended: Counter[tuple[str, str]] = Counter()
        self.away: set[str] = set()
        self._aliases: dict[str, str] = {}
        self._timelines: deque[Job] = deque()
        self._expires_at = clock() + EXPIRE_EVERY_S

    # --- looking ----------------------------------------------------------------------------

    def find(self, name: str) -> Job | None:
        """A job by its id or by the request id of its client."""
        return self.jobs.get(name) or self.jobs.get(self._aliases.get(name, ""))

    def active(self) -> list[Job]:
        """Jobs that have not ended."""
        return [job for job in self.jobs.values() if job.state in ACTIVE]

    def count(self, *states: str) -> int:
        """Jobs in one of some states."""
        return sum(job.state in states for job in self.jobs.values())

    def order(self) -> list[str]:
        """Jobs without a turn, in the order in which they are expected to get one."""
        turns, places = self.turns.order(), self.places.order()
        between = [
            job.job_id
            for job in self.jobs.values()
            if job.state in PLACED
            and job.slot is None
            and job.loop_ended_at is None
            and job.job_id not in turns
        ]
        return [*turns, *between, *places]

    def describe(self, jobs: list[Job]) -> list[Answer]:
        """What clients and the supervisor are told about some jobs."""
        now = self.clock()
        expected = forecast(self.active(), self.order(), self.costs, self.limits.running_jobs, now)
        round_seconds = round_s(self.active(), self.costs)
        orders = {QUEUED: self.places.order(), WAITING: self.turns.order()}
        return [
            {
                "job_id": job.job_id,
                "alias": job.alias,
                "task": job.task,
                "client": job.client,
                "priority": job.priority,
                "state": job.state,
                "stage": job.stage,
                "step": job.step,
                "num_steps": job.num_steps,
                "stage_steps": job.stage_steps,
                "clip": job.clip,
                "num_clips": job.num_clips,
                "position": _position(orders.get(job.state, []), job.job_id),
                "cancel": job.stop is not None,
                "elapsed_s": round((job.ended_at or now) - job.created_at, 3),
                "expected_s": _rounded(expected.get(job.job_id)),
                "awaiting": sorted(job.awaiting) if job.state in PLACED else [],
                "dit": job.dit,
                "loop_pid": job.loop_pid,
                "sessions": len(job.sessions),
                "stamp_age_s": round(now - job.touched_at, 3),
                "expected_step_s": _rounded(round_seconds if job.slot is not None else None),
                "error": job.error,
            }
            for job in jobs
        ]

    # --- changing ---------------------------------------------------------------------------

    def known(self, operation: Operation) -> Job:
        """The job of a worker's operation; one lost with a dead table is taken up again."""
        job = self.jobs.get(word(operation, "job_id"))
        if job is None:
            job = self.new_job(operation)
            self.jobs[job.job_id] = job
            if job.alias:
                self._aliases[job.alias] = job.job_id
            if job.state == QUEUED:
                self.places.push(job.job_id, job.priority)
        job.touched_at = self.clock()
        return job

    def new_job(self, operation: Operation) -> Job:
        """A job from the facts that an operation carries; it is not in the table yet."""
        now, queued = self.clock(), flag(operation, "queued")
        return Job(
            job_id=word(operation, "job_id"),
            alias=word(operation, "alias", ""),
            task=word(operation, "task"),
            num_steps=count(operation, "num_steps"),
            num_clips=count(operation, "num_clips"),
            rows=count(operation, "rows"),
            priority=choice(operation, "priority", RANKS, "normal"),
            client=word(operation, "client", ""),
            deadline_s=seconds(operation, "deadline_s"),
            streamed=flag(operation, "streamed"),
            state=QUEUED if queued else RUNNING,
            stage="queue" if queued else "preprocess",
            created_at=now,
            touched_at=now,
            placed_at=now,
        )

    def missing_for(self, task: str) -> set[str]:
        """Models that are away and that a job of this task needs."""
        return self.away & {*ENSEMBLE_STEPS, ROUTES.get(task, "")}

    def grant_places(self) -> None:
        """Let queued jobs in while there is a free place; not those that need a model in vain."""
        blocked = self._blocked(self.places, self.missing_for)
        while self.count(*PLACED) < self.limits.max_jobs:
            job_id = self.places.pop(blocked)
            if job_id is None:
                return
            job = self.jobs[job_id]
            job.state, job.stage, job.placed_at = RUNNING, "preprocess", self.clock()
            job.mark(job.placed_at)

    def grant_turns(self) -> None:
        """Give free turns to the jobs that wait for one; those whose DiT is away go on waiting."""
        blocked = self._blocked(self.turns, lambda task: self.away & {ROUTES.get(task, "")})
        taken = {job.slot for job in self.jobs.values()}
        for slot in range(self.limits.running_jobs):
            job_id = self.turns.pop(blocked) if slot not in taken else None
            if job_id is not None:
                self.jobs[job_id].slot = slot

    def _blocked(self, queue: TurnQueue, missing: Callable[[str], set[str]]) -> set[str]:
        """Jobs of a queue whose task misses a model."""
        waiting = queue.order() if self.away else ()
        return {job_id for job_id in waiting if missing(self.jobs[job_id].task)}

    def stop(self, job: Job, error: H3Error) -> None:
        """Ask for the end of a job; one that nobody works on ends at once."""
        if job.stop is None:
            job.stop = (error.kind, str(error))
        if job.state == QUEUED:
            self.end(job, CANCELLED, _facts(job, error))

    def fail(self, job: Job, error: H3Error) -> None:
        """End a job whose workers cannot say so; those that live are told at their next word."""
        job.stop = (error.kind, str(error))
        self.end(job, FAILED, _facts(job, error))

    def leave(self, job: Job) -> None:
        """Give up the turn and any wait for one."""
        job.slot, job.dit = None, ""
        self.places.remove(job.job_id)
        self.turns.remove(job.job_id)
        self.grant_turns()

    def end(self, job: Job, state: str, error: dict[str, str] | None) -> None:
        """End a job that has not ended."""
        if job.state not in ACTIVE:
            return
        for session_id in job.sessions:
            self.orphan(session_id)
        job.sessions.clear()
        self.leave(job)
        job.awaiting.clear()
        job.state, job.error, job.ended_at = state, error, self.clock()
        self.ended[state, error["kind"] if error else ""] += 1
        if error is not None and job.stop is None:  # stages beside the one that failed
            text = f"job {job.job_id} has ended in {error['stage']}: {error['message']}"
            job.stop = (CancelledError.kind, text)
        self._timelines.append(job)
        if len(self._timelines) > KEEP_TIMELINES:
            self._timelines.popleft().marks.clear()

    def orphan(self, session_id: str) -> None:
        """Remember a session that the DiT must end by itself."""
        self.orphans[session_id] = None
        while len(self.orphans) > KEEP_ORPHANS:
            del self.orphans[next(iter(self.orphans))]

    def expire(self) -> None:
        """End stale jobs and forget old ended ones, newest `KEEP_ENDED` kept."""
        now = self.clock()
        if now < self._expires_at:
            return
        self._expires_at = now + EXPIRE_EVERY_S
        ended = []
        for job in self.jobs.values():
            if job.state in ACTIVE and now - job.touched_at > self.limits.stale_s:
                text = f"no worker spoke of this job for {self.limits.stale_s:g} s"
                job.stop = (WorkerLostError.kind, text)
                self.end(job, FAILED, _facts(job, WorkerLostError(text)))
            if job.ended_at is not None:
                ended.append((job.ended_at, job.job_id))
        for place, (ended_at, job_id) in enumerate(sorted(ended, reverse=True)):
            if place >= KEEP_ENDED or now - ended_at > KEEP_ENDED_S:
                alias = self.jobs.pop(job_id).alias
                if self._aliases.get(alias) == job_id:
                    del self._aliases[alias]


def _facts(job: Job, error: H3Error) -> dict[str, str]:
    return {"stage": job.stage, "kind": error.kind, "message": str(error)}


def _position(order: list[str], job_id: str) -> int:
    return order.index(job_id) + 1 if job_id in order else 0


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
