"""How a stage speaks to `jobs`. A dead or slow `jobs` model never stops a job."""

import json
import logging
import time
from collections.abc import Callable, Mapping

from minimax_h3.core.errors import DeadlineExceededError, H3Error, error_of
from minimax_h3.core.plan import Plan
from minimax_h3.stages.base import ModelCaller, text_tensor

REFUSALS = ("capacity", "invalid_request", "deadline_refused")  # of a new job
AWAY_S = 1.0  # after a failed call, go on without asking for this long


class JobClient:
    """Calls to the `jobs` model on behalf of the jobs a stage works on.

    Args:
        call: BLS caller.
        log: where a lost `jobs` model is reported.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        call: ModelCaller,
        log: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._call = call
        self._log = log
        self._clock = clock
        self._away_until = 0.0

    def tell(self, operation: dict[str, object]) -> dict[str, object]:
        """Carry out one operation and return the answer.

        Raises:
            H3Error: `jobs` refused it or could not be reached.
        """
        answer = self._call("jobs", {"OP": text_tensor(json.dumps(operation))}, ["ANSWER"])
        answered: dict[str, object] = json.loads(answer["ANSWER"].reshape(-1)[0])
        return answered

    def ask(self, plan: Plan, op: str, **fields: object) -> dict[str, object]:
        """Carry out one operation about a job; an empty answer when `jobs` is away.

        The operation carries the job's facts, so that a restarted `jobs` model knows it again.
        """
        return self.say({**job_facts(plan), **fields, "op": op})

    def say(
        self, operation: dict[str, object], refusals: tuple[str, ...] = ()
    ) -> dict[str, object]:
        """Carry out one operation; an empty answer when `jobs` is away.

        Raises:
            H3Error: `jobs` refused it with a kind that is one of `refusals`.
        """
        if self._clock() < self._away_until:
            return {}
        try:
            return self.tell(operation)
        except H3Error as error:
            if error.kind in refusals:
                raise
            self._away_until = self._clock() + AWAY_S
            job = operation.get("job_id", "-")
            self._log.warning("job %s goes on without jobs for %g s: %s", job, AWAY_S, error)
            return {}

    def note(self, plan: Plan, message: str) -> None:
        """Log something about a job that changes nothing for it."""
        self._log.warning("job %s: %s", plan.job_id, message, extra={"job_id": plan.job_id})

    def progress(
        self,
        plan: Plan,
        stage: str,
        *,
        step: int = 0,
        num_steps: int = 0,
        clip: int = 0,
        **fields: object,
    ) -> None:
        """Report where a job is; this is also the boundary at which it stops.

        Args:
            plan: of the job.
            stage: who speaks.
            step: steps of the stage that are done.
            num_steps: all steps of the stage; 0 if it has none.
            clip: index of the clip.
            fields: of the denoiser: `step_s`, `session_id`, `dit`.

        Raises:
            CancelledError: the job was cancelled.
            DeadlineExceededError: its deadline has passed.
            WorkerLostError: the supervisor gave it up.
        """
        where = f"{stage} at {step}/{num_steps}" if num_steps else stage
        check_deadline(plan, where)
        told = {"stage": stage, "step": step, "stage_steps": num_steps, "clip": clip, **fields}
        raise_if_stopped(self.ask(plan, "progress", **told), where)

    def check_cancel(self, plan: Plan, stage: str) -> None:
        """A cancel boundary of a stage that runs beside the one whose progress people see.

        Raises:
            CancelledError, DeadlineExceededError, WorkerLostError: see `progress`.
        """
        check_deadline(plan, stage)
        raise_if_stopped(self.ask(plan, "touch", stage=stage), stage)


def check_deadline(plan: Plan, where: str) -> None:
    """Stop a job whose time is over; needs no word of `jobs`.

    Raises:
        DeadlineExceededError: names the limit and the place.
    """
    if plan.deadline_s is not None and time.time() - plan.received_at > plan.deadline_s:
        raise DeadlineExceededError(
            f"deadline_s: {plan.deadline_s:g} s have passed; job {plan.job_id} stopped in {where}"
        )


def raise_if_stopped(answer: Mapping[str, object], where: str) -> None:
    """Stop a job that `jobs` says to stop.

    Raises:
        H3Error: of the kind that `jobs` named.
    """
    if answer.get("cancel"):
        kind, message = answer.get("kind", "cancelled"), answer.get("message", "cancelled")
        raise error_of(str(kind), f"{message}; stopped in {where}")


def job_facts(plan: Plan) -> dict[str, object]:
    """What `jobs` needs to know about a job."""
    return {
        "job_id": plan.job_id,
        "alias": plan.alias,
        "task": plan.task,
        "num_steps": plan.num_forwards,
        "num_clips": len(plan.seeds),
        "rows": plan.packed_rows,
        "priority": plan.priority,
        "client": plan.client,
        "deadline_s": plan.deadline_s,
    }
