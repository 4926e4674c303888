"""Jobs of this server: admission, turns, progress, cancel. Pure state, no Triton, no threads.

The `jobs` model holds one `JobTable` and answers one JSON operation a call. It may die and come
back empty at any time: operations of a running job carry what is needed to know it again, and
callers go on without an answer. Times come from an injected clock, in seconds.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from minimax_h3.core.errors import CapacityError, InvalidRequestError

ACTIVE, TERMINAL = ("waiting", "running"), ("finished", "failed", "cancelled")
KEEP_FINISHED_S = 3600.0
KEEP_FINISHED = 1000
MAX_ID_CHARS = 128
MAX_MESSAGE_CHARS = 2000
RETRY_AFTER_S = 5.0


@dataclass(slots=True)
class Job:
    """One job as the table knows it; `slot` is its turn at the DiT, or None."""

    job_id: str
    alias: str
    task: str
    num_steps: int
    num_clips: int
    created_at: float
    touched_at: float
    state: str = "running"
    stage: str = "preprocess"
    step: int = 0
    clip: int = 0
    slot: int | None = None
    cancel: bool = False
    ended_at: float | None = None
    error: dict[str, str] | None = None
    sessions: set[str] = field(default_factory=set)


class JobTable:
    """All jobs of one server.

    Args:
        running_jobs: turns that are given at the same time.
        max_jobs: jobs that may be active; beyond it `register` is refused.
        stale_s: an active job untouched for longer is ended as failed, so that a worker that died
            without a word does not hold its place for ever.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        running_jobs: int,
        max_jobs: int,
        stale_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._running_jobs = running_jobs
        self._max_jobs = max_jobs
        self._stale_s = stale_s
        self._clock = clock
        self._jobs: dict[str, Job] = {}
        self._aliases: dict[str, str] = {}
        self._queue: list[str] = []
        self._started_at = clock()
        self._operations = {
            "ping": self._ping,
            "register": self._register,
            "turn": self._turn,
            "session": self._session,
            "session_known": self._session_known,
            "progress": self._progress,
            "touch": self._touch,
            "release": self._release,
            "finish": self._finish,
            "fail": self._fail,
            "cancel": self._cancel,
            "get": self._get,
            "list": self._list,
        }

    def handle(self, operation: dict[str, object]) -> dict[str, object]:
        """Carry out one operation, `{"op": name, ...}`, and return its answer.

        Raises:
            InvalidRequestError: unknown operation, or a field is missing or ill-typed.
            CapacityError: `register` beyond `max_jobs`.
        """
        name = operation.get("op")
        handler = self._operations.get(name) if isinstance(name, str) else None
        if handler is None:
            legal = ", ".join(self._operations)
            raise InvalidRequestError(f"op: {str(name)[:50]!r} is not legal; legal: {legal}")
        self._expire()
        return handler(operation)

    # --- what workers say -------------------------------------------------------------------

    def _register(self, operation: dict[str, object]) -> dict[str, object]:
        job_id, alias = _word(operation, "job_id"), _word(operation, "alias", "")
        holder = self._jobs.get(self._aliases.get(alias, "")) if alias else None
        if holder is not None and holder.state in ACTIVE and holder.job_id != job_id:
            raise InvalidRequestError(
                f"request id: {alias!r} is in use by running job {holder.job_id}; "
                "legal: an id that no active job uses"
            )
        if job_id not in self._jobs and self._active() >= self._max_jobs:
            raise CapacityError(
                f"{self._max_jobs} jobs are active, the most this server admits; "
                f"retry after {RETRY_AFTER_S:g} s"
            )
        self._known(operation)
        return {"job_id": job_id}

    def _turn(self, operation: dict[str, object]) -> dict[str, object]:
        job = self._known(operation)
        if job.slot is None and job.job_id not in self._queue:
            self._queue.append(job.job_id)
        free = self._free_slot()
        if job.slot is None and free is not None and self._queue[0] == job.job_id:
            self._queue.pop(0)
            job.slot = free
        job.state = "waiting" if job.slot is None else "running"
        job.stage = "denoiser"
        position = 0 if job.slot is not None else self._queue.index(job.job_id) + 1
        return {
            "go": job.slot is not None,
            "slot": job.slot,
            "position": position,
            "cancel": job.cancel,
        }

    def _session(self, operation: dict[str, object]) -> dict[str, object]:
        job = self._known(operation)
        job.sessions.add(_word(operation, "session_id"))
        return {"cancel": job.cancel}

    def _session_known(self, operation: dict[str, object]) -> dict[str, object]:
        session_id = _word(operation, "session_id")
        known = any(
            session_id in job.sessions for job in self._jobs.values() if job.state in ACTIVE
        )
        return {"known": known}

    def _progress(self, operation: dict[str, object]) -> dict[str, object]:
        job = self._known(operation)
        job.stage = _word(operation, "stage")
        job.step, job.num_steps = _count(operation, "step"), _count(operation, "num_steps")
        job.clip = _count(operation, "clip")
        return {"cancel": job.cancel}

    def _touch(self, operation: dict[str, object]) -> dict[str, object]:
        return {"cancel": self._known(operation).cancel}

    def _release(self, operation: dict[str, object]) -> dict[str, object]:
        job = self._jobs.get(_word(operation, "job_id"))
        if job is not None:
            self._leave(job)
        return {}

    def _finish(self, operation: dict[str, object]) -> dict[str, object]:
        self._end(self._known(operation), "finished", None)
        return {}

    def _fail(self, operation: dict[str, object]) -> dict[str, object]:
        job = self._jobs.get(_word(operation, "job_id"))
        if job is None or job.state in TERMINAL:
            return {}
        error = {key: _message(operation, key) for key in ("stage", "kind", "message")}
        self._end(job, "cancelled" if error["kind"] == "cancelled" else "failed", error)
        return {}

    # --- what clients ask -------------------------------------------------------------------

    def _ping(self, operation: dict[str, object]) -> dict[str, object]:
        del operation
        return {
            "ok": True,
            "active": self._active(),
            "waiting": len(self._queue),
            "max_jobs": self._max_jobs,
            "uptime_s": round(self._clock() - self._started_at, 3),
        }

    def _cancel(self, operation: dict[str, object]) -> dict[str, object]:
        job = self._find(_word(operation, "id"))
        if job is None:
            return {"cancelled": False, "unknown": True}
        if job.state in ACTIVE:
            job.cancel = True
        return {"cancelled": job.cancel, "state": job.state, "job_id": job.job_id}

    def _get(self, operation: dict[str, object]) -> dict[str, object]:
        job = self._find(_word(operation, "id"))
        return {"unknown": True} if job is None else self._describe(job)

    def _list(self, operation: dict[str, object]) -> dict[str, object]:
        del operation
        return {"jobs": [self._describe(job) for job in self._jobs.values()]}

    # --- state ------------------------------------------------------------------------------

    def _known(self, operation: dict[str, object]) -> Job:
        """The job of a worker's operation; one lost with a dead table is taken up again."""
        job_id, alias = _word(operation, "job_id"), _word(operation, "alias", "")
        now = self._clock()
        job = self._jobs.get(job_id)
        if job is None:
            job = Job(
                job_id=job_id,
                alias=alias,
                task=_word(operation, "task"),
                num_steps=_count(operation, "num_steps"),
                num_clips=_count(operation, "num_clips"),
                created_at=now,
                touched_at=now,
            )
            self._jobs[job_id] = job
            if alias:
                self._aliases[alias] = job_id
        job.touched_at = now
        return job

    def _find(self, name: str) -> Job | None:
        return self._jobs.get(name) or self._jobs.get(self._aliases.get(name, ""))

    def _active(self) -> int:
        return sum(job.state in ACTIVE for job in self._jobs.values())

    def _free_slot(self) -> int | None:
        taken = {job.slot for job in self._jobs.values()}
        return next((slot for slot in range(self._running_jobs) if slot not in taken), None)

    def _leave(self, job: Job) -> None:
        job.slot = None
        job.sessions.clear()
        if job.job_id in self._queue:
            self._queue.remove(job.job_id)

    def _end(self, job: Job, state: str, error: dict[str, str] | None) -> None:
        self._leave(job)
        job.state, job.error, job.ended_at = state, error, self._clock()

    def _expire(self) -> None:
        """End stale jobs and forget old finished ones, newest `KEEP_FINISHED` kept."""
        now = self._clock()
        for job in self._jobs.values():
            if job.state in ACTIVE and now - job.touched_at > self._stale_s:
                message = f"no worker spoke of this job for {self._stale_s:g} s"
                self._end(job, "failed", {"stage": job.stage, "kind": "lost", "message": message})
        ended = [job for job in self._jobs.values() if job.ended_at is not None]
        surplus = len(ended) - KEEP_FINISHED
        for index, job in enumerate(ended):
            if index < surplus or now - (job.ended_at or now) > KEEP_FINISHED_S:
                del self._jobs[job.job_id]
                if self._aliases.get(job.alias) == job.job_id:
                    del self._aliases[job.alias]

    def _describe(self, job: Job) -> dict[str, object]:
        waiting = job.job_id in self._queue
        return {
            "job_id": job.job_id,
            "alias": job.alias,
            "task": job.task,
            "state": job.state,
            "stage": job.stage,
            "step": job.step,
            "num_steps": job.num_steps,
            "clip": job.clip,
            "num_clips": job.num_clips,
            "position": self._queue.index(job.job_id) + 1 if waiting else 0,
            "cancel": job.cancel,
            "elapsed_s": round((job.ended_at or self._clock()) - job.created_at, 3),
            "error": job.error,
        }


def _word(operation: dict[str, object], name: str, default: str | None = None) -> str:
    value = operation.get(name, default)
    if not isinstance(value, str) or len(value) > MAX_ID_CHARS or (default is None and not value):
        raise InvalidRequestError(
            f"{name}: {str(value)[:50]!r} is not legal; "
            f"legal: a string of 1..{MAX_ID_CHARS} characters"
        )
    return value


def _message(operation: dict[str, object], name: str) -> str:
    return str(operation.get(name, ""))[:MAX_MESSAGE_CHARS]


def _count(operation: dict[str, object], name: str) -> int:
    value = operation.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidRequestError(f"{name}: {value!r} is not legal; legal: a whole number from 0")
    return value
