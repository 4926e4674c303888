"""Jobs of this server: admission, turns, progress, cancel. Pure state, no Triton, no threads.

The `jobs` model holds one `JobTable` and answers one JSON operation a call. It may die and come
back empty at any time: operations of a running job carry what is needed to know it again, and
callers go on without an answer. Times come from an injected clock, in seconds.
"""

import time
from collections.abc import Callable, Mapping

from minimax_h3.control.forecast import forecast
from minimax_h3.control.job import (
    ACTIVE,
    CANCELLED,
    FAILED,
    FINISHED,
    PLACED,
    QUEUED,
    RUNNING,
    WAITING,
    Job,
)
from minimax_h3.control.operation import (
    Operation,
    count,
    entries,
    flag,
    message,
    numbers,
    seconds,
    word,
    words,
)
from minimax_h3.control.registry import Answer, JobRegistry, Limits
from minimax_h3.core.errors import (
    RETRY_AFTER_S,
    CancelledError,
    CapacityError,
    DeadlineRefusedError,
    InvalidRequestError,
    NotAvailableError,
    WorkerLostError,
)

STOPPING = "the server is stopping; retry when it is back"
CLIENT_OPERATIONS = ("ping", "get", "list", "cancel", "timeline")


class JobTable:
    """All jobs of one server; `clock` gives monotonic seconds."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._held = JobRegistry(limits, clock)
        self._draining = False
        self._started_at = clock()
        self._operations: dict[str, Callable[[Operation], Answer]] = {
            "ping": self._ping,
            "get": self._get,
            "list": self._list,
            "cancel": self._cancel,
            "timeline": self._timeline,
            "register": self._register,
            "enqueue": self._enqueue,
            "watch": self._watch,
            "turn": self._turn,
            "session": self._session,
            "session_known": self._session_known,
            "orphans": self._name_orphans,
            "progress": self._progress,
            "touch": self._touch,
            "left": self._left,
            "release": self._release,
            "finish": self._finish,
            "fail": self._fail,
            "worker_lost": self._worker_lost,
            "worker_back": self._worker_back,
            "drain": self._drain,
        }

    def handle(self, operation: Operation, *, trusted: bool = True) -> Answer:
        """Carry out one operation, `{"op": name, ...}`, and return its answer.

        Args:
            operation: from JSON.
            trusted: the caller is a model of this server or its supervisor.

        Raises:
            InvalidRequestError: unknown operation, or a field is missing or ill-typed.
            NotAvailableError: an operation that is not for clients.
            CapacityError: a job beyond a limit.
            DeadlineRefusedError: a job that cannot be done in time.
        """
        name = operation.get("op")
        handler = self._operations.get(name) if isinstance(name, str) else None
        if handler is None or not (trusted or name in CLIENT_OPERATIONS):
            legal = ", ".join(self._operations if trusted else CLIENT_OPERATIONS)
            if handler is None:
                raise InvalidRequestError(f"op: {str(name)[:50]!r} is not legal; legal: {legal}")
            raise NotAvailableError(f"op: {name!r} is for this server's own models; legal: {legal}")
        self._held.expire()
        return handler(operation)

    @property
    def ended(self) -> Mapping[tuple[str, str], int]:
        """Jobs that ended so far, by state and kind of error."""
        return self._held.ended

    def states(self) -> dict[str, int]:
        """Unfinished jobs by state."""
        return {state: self._held.count(state) for state in ACTIVE}

    # --- admission --------------------------------------------------------------------------

    def _register(self, operation: Operation) -> Answer:
        """A job wants a place now, or has one already."""
        if word(operation, "job_id") not in self._held.jobs:
            self._check_new(operation)
            missing = self._held.missing_for(word(operation, "task"))
            if missing:
                names = ", ".join(sorted(missing))
                text = f"{names} is being started again; retry after {RETRY_AFTER_S:g} s"
                raise CapacityError(text)
            taken = self._held.count(*PLACED) + len(self._held.places)
            if taken >= self._held.limits.max_jobs:
                raise CapacityError(
                    f"{taken} jobs are active or wait, and this server admits "
                    f"{self._held.limits.max_jobs}; retry after {RETRY_AFTER_S:g} s"
                )
            self._check_deadline(operation)
        job = self._held.known(operation)
        job.rows = count(operation, "rows")  # a queued job's were a guess
        return {"job_id": job.job_id, **job.stop_answer()}

    def _enqueue(self, operation: Operation) -> Answer:
        """A streamed job joins the queue for a place."""
        if word(operation, "job_id") not in self._held.jobs:
            self._check_new(operation)
            self._check_deadline(operation)
        self._held.known({**operation, "queued": True})
        self._held.grant_places()
        return {}

    def _check_new(self, operation: Operation) -> None:
        """Refuse what no free place could change."""
        alias, client = word(operation, "alias", ""), word(operation, "client", "")
        if self._draining:
            raise CapacityError(STOPPING)
        holder = self._held.find(alias) if alias else None
        if holder is not None and holder.state in ACTIVE:
            raise InvalidRequestError(
                f"request id: {alias!r} is in use by running job {holder.job_id}; "
                "legal: an id that no active job uses"
            )
        own = sum(job.client == client and job.state in ACTIVE for job in self._held.jobs.values())
        if client and own >= self._held.limits.client_jobs:
            raise CapacityError(
                f"client {client!r} has {own} unfinished jobs, the most of one client; "
                f"retry after {RETRY_AFTER_S:g} s"
            )

    def _check_deadline(self, operation: Operation) -> None:
        limit = seconds(operation, "deadline_s")
        if limit is None:
            return
        held = self._held
        job = held.new_job(operation)
        others = [*held.active(), job]
        order = [*held.order(), job.job_id]
        expected = forecast(
            others,
            order,
            self._held.costs.sure(),
            self._held.limits.running_jobs,
            self._held.clock(),
        ).get(job.job_id)
        if expected is not None and expected > limit:
            raise DeadlineRefusedError(
                f"deadline_s: {limit:g} cannot be met; the job would take about {expected:.3g} s "
                "with the work before it; retry later or allow more"
            )

    def _watch(self, operation: Operation) -> Answer:
        """State of streamed jobs, with what happened since the `seen` marks of each."""
        jobs = [
            (self._held.known(entry), count(entry, "seen")) for entry in entries(operation, "jobs")
        ]
        self._held.grant_places()
        described = self._held.describe([job for job, _ in jobs])
        for answer, (job, seen) in zip(described, jobs, strict=True):
            answer["marks"] = [mark.as_list() for mark in job.marks[seen:]]
            answer["seen"] = len(job.marks)
        return {"jobs": described}

    # --- turns and progress -----------------------------------------------------------------

    def _turn(self, operation: Operation) -> Answer:
        job, now = self._held.known(operation), self._held.clock()
        if job.state not in PLACED:
            return {"go": False, "slot": None, "position": 0, **job.stop_answer()}
        if job.asked_turn_at is None:
            job.asked_turn_at = now
            self._held.costs.before.append(now - job.placed_at)
        job.loop_pid = count(operation, "pid")
        if job.stage != "denoiser":
            job.stage, job.step, job.stage_steps = "denoiser", 0, job.num_steps
            job.enters("denoiser")
        if job.slot is None:
            self._held.turns.push(job.job_id, job.priority)
            self._held.grant_turns()
        job.state = WAITING if job.slot is None else RUNNING
        order = self._held.turns.order() if job.slot is None else []
        position = order.index(job.job_id) + 1 if order else 0
        return {
            "go": job.slot is not None,
            "slot": job.slot,
            "position": position,
            **job.stop_answer(),
        }

    def _session(self, operation: Operation) -> Answer:
        job = self._held.known(operation)
        self._take_session(job, operation)
        return job.stop_answer()

    def _take_session(self, job: Job, operation: Operation) -> None:
        session_id = word(operation, "session_id", "")
        if not session_id:
            return
        job.dit = word(operation, "dit", "")
        if job.state in ACTIVE:
            job.sessions.add(session_id)
        else:
            self._held.orphan(session_id)

    def _session_known(self, operation: Operation) -> Answer:
        session_id = word(operation, "session_id")
        known = any(
            session_id in job.sessions for job in self._held.jobs.values() if job.state in ACTIVE
        )
        return {"known": known}

    def _name_orphans(self, operation: Operation) -> Answer:
        """Those of the sessions whose job ended while its loop could not end them."""
        return {
            "orphans": [held for held in words(operation, "sessions") if held in self._held.orphans]
        }

    def _progress(self, operation: Operation) -> Answer:
        job, now = self._held.known(operation), self._held.clock()
        stage, step_s = word(operation, "stage"), seconds(operation, "step_s")
        job.enters(stage)
        job.stage = stage
        job.step, job.stage_steps = count(operation, "step"), count(operation, "stage_steps")
        job.clip = count(operation, "clip")
        self._take_session(job, operation)
        if step_s is not None:
            self._held.costs.steps.learn(job.rows, step_s)
        if job.stop is None:  # else the step that was announced is not begun
            job.mark(now)
        return job.stop_answer()

    def _touch(self, operation: Operation) -> Answer:
        job = self._held.known(operation)
        job.enters(word(operation, "stage"))
        return job.stop_answer()

    def _left(self, operation: Operation) -> Answer:
        job = self._held.jobs.get(word(operation, "job_id"))
        if job is not None:
            job.leaves(word(operation, "stage"))
            job.touched_at = self._held.clock()
        return {}

    def _release(self, operation: Operation) -> Answer:
        """The loop is over and has ended its sessions itself."""
        job = self._held.jobs.get(word(operation, "job_id"))
        if job is not None:
            job.sessions.clear()
            job.loop_ended_at = self._held.clock()
            job.leaves("denoiser")
            self._held.leave(job)
        return {}

    def _finish(self, operation: Operation) -> Answer:
        job = self._held.known(operation)
        if job.loop_ended_at is not None and job.state in ACTIVE:
            rows = job.rows * job.num_clips
            self._held.costs.after.learn(rows, self._held.clock() - job.loop_ended_at)
        self._held.end(job, FINISHED, None)
        return {}

    def _fail(self, operation: Operation) -> Answer:
        job = self._held.jobs.get(word(operation, "job_id"))
        if job is None:
            return {}
        error = {key: message(operation, key) for key in ("stage", "kind", "message")}
        self._held.end(job, CANCELLED if error["kind"] == CancelledError.kind else FAILED, error)
        return {}

    # --- what clients ask -------------------------------------------------------------------

    def _ping(self, operation: Operation) -> Answer:
        del operation
        return {
            "ok": True,
            "active": self._held.count(*PLACED),
            "queued": len(self._held.places),
            "waiting": len(self._held.turns),
            "max_jobs": self._held.limits.max_jobs,
            "draining": self._draining,
            "uptime_s": round(self._held.clock() - self._started_at, 3),
        }

    def _cancel(self, operation: Operation) -> Answer:
        job = self._held.find(word(operation, "id"))
        if job is None:
            return {"cancelled": False, "unknown": True}
        if job.state in ACTIVE:
            self._held.stop(job, CancelledError(f"job {job.job_id} was cancelled"))
        cancelled = job.stop is not None and job.stop[0] == CancelledError.kind
        return {"cancelled": cancelled, "state": job.state, "job_id": job.job_id}

    def _get(self, operation: Operation) -> Answer:
        job = self._held.find(word(operation, "id"))
        return {"unknown": True} if job is None else self._held.describe([job])[0]

    def _list(self, operation: Operation) -> Answer:
        del operation
        return {"jobs": self._held.describe(list(self._held.jobs.values()))}

    def _timeline(self, operation: Operation) -> Answer:
        """Everything that happened to a job: stage, step, steps, clip, seconds of the table."""
        job = self._held.find(word(operation, "id"))
        if job is None:
            return {"unknown": True}
        began = job.created_at - self._started_at
        return {
            "job_id": job.job_id,
            "state": job.state,
            "began_s": round(began, 4),
            "marks": [mark.as_list() for mark in job.marks],
        }

    # --- what the supervisor says -----------------------------------------------------------

    def _worker_lost(self, operation: Operation) -> Answer:
        """End the jobs that the dead or hung processes of a model were to serve.

        Until `worker_back` no job that needs the model gets a place, or a turn at that DiT.
        """
        model, pids = word(operation, "model"), numbers(operation, "pids")
        self._held.away.add(model)
        lost = [
            job
            for job in self._held.jobs.values()
            if job.state in ACTIVE and job.depends_on(model, pids)
        ]
        for job in lost:
            text = f"the process of {model} died or hung; retry"
            self._held.fail(job, WorkerLostError(text))
        return {"ended": [job.job_id for job in lost]}

    def _worker_back(self, operation: Operation) -> Answer:
        """A model has a process again."""
        self._held.away.discard(word(operation, "model"))
        self._held.grant_places()
        self._held.grant_turns()
        return {}

    def _drain(self, operation: Operation) -> Answer:
        """Admit nothing more, or again; with `cancel` also stop what is there."""
        self._draining = flag({"on": True, **operation}, "on")
        active = [job for job in self._held.jobs.values() if job.state in ACTIVE]
        for job in active if self._draining else []:
            if job.state == QUEUED:
                self._held.fail(job, CapacityError("the server is stopping; retry when it is back"))
            elif flag(operation, "cancel"):
                self._held.stop(job, CancelledError(f"job {job.job_id} was cancelled: {STOPPING}"))
        return {
            "draining": self._draining,
            "active": self._held.count(*PLACED),
            "queued": len(self._held.places),
            "sessions": sum(len(job.sessions) for job in self._held.jobs.values()),
        }
