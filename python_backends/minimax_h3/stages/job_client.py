"""How a stage speaks to `jobs`. A dead or slow `jobs` model never stops a job."""

import json
import logging
import time
from collections.abc import Callable

from minimax_h3.core.errors import CancelledError, H3Error
from minimax_h3.core.plan import Plan
from minimax_h3.stages.base import ModelCaller, text_tensor

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
        if self._clock() < self._away_until:
            return {}
        try:
            return self.tell({**job_facts(plan), **fields, "op": op})
        except H3Error as error:
            self._away_until = self._clock() + AWAY_S
            self._log.warning(
                "job %s goes on without jobs for %g s: %s", plan.job_id, AWAY_S, error
            )
            return {}

    def note(self, plan: Plan, message: str) -> None:
        """Log something about a job that changes nothing for it."""
        self._log.warning("job %s: %s", plan.job_id, message)

    def progress(
        self, plan: Plan, stage: str, *, step: int = 0, num_steps: int = 0, clip: int = 0
    ) -> None:
        """Report where a job is; this is also the cancel boundary.

        Raises:
            CancelledError: the job was cancelled.
        """
        answer = self.ask(plan, "progress", stage=stage, step=step, num_steps=num_steps, clip=clip)
        if answer.get("cancel"):
            raise CancelledError(
                f"job {plan.job_id} was cancelled in {stage} at {step}/{num_steps}"
            )

    def check_cancel(self, plan: Plan, stage: str) -> None:
        """A cancel boundary of a stage that runs beside the one whose progress people see.

        Raises:
            CancelledError: the job was cancelled.
        """
        if self.ask(plan, "touch").get("cancel"):
            raise CancelledError(f"job {plan.job_id} was cancelled before {stage}")


def job_facts(plan: Plan) -> dict[str, object]:
    """What `jobs` needs to know about a job."""
    return {
        "job_id": plan.job_id,
        "alias": plan.alias,
        "task": plan.task,
        "num_steps": plan.num_forwards,
        "num_clips": len(plan.seeds),
    }
