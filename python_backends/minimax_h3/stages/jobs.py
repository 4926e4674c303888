"""The `jobs` model: one JSON operation in, one JSON answer out."""

import json
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from minimax_h3.control.job_table import JobTable
from minimax_h3.control.registry import Limits
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.core.metrics import NO_METER, Meter
from minimax_h3.stages.base import StageContext, StageRequest, text_tensor
from minimax_h3.stages.job_metrics import JobMetrics

MAX_OPERATION_BYTES = 16_384  # of a client
# A stream model asks about all its jobs at once: 536 at most, up to 3 KB each.
MAX_WORKER_OPERATION_BYTES = 2 * 1024**2


class JobsStage:
    """Holds the job table of this server."""

    name: ClassVar[str] = "jobs"

    def __init__(self, table: JobTable, meter: Meter = NO_METER) -> None:
        self._table = table
        self._metrics = JobMetrics(meter)

    @classmethod
    def load(cls, context: StageContext) -> "JobsStage":
        """Build an empty table with the configured limits."""
        config = context.config
        return cls(
            JobTable(
                Limits(
                    running_jobs=config.running_jobs,
                    max_jobs=config.max_jobs,
                    client_jobs=config.client_jobs,
                    stale_s=config.session_lease_s,
                )
            ),
            context.meter,
        )

    def run(self, request: StageRequest) -> dict[str, NDArray[np.generic]]:
        """Answer one operation; those of the models themselves need the token of this start.

        Raises:
            InvalidRequestError: not a JSON object, too long, or an illegal operation.
        """
        text = request.text("OP")
        longest = MAX_WORKER_OPERATION_BYTES if request.trusted else MAX_OPERATION_BYTES
        if len(text) > longest:
            raise InvalidRequestError(f"OP: {len(text)} characters; legal: up to {longest}")
        try:
            operation = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(f"OP: not JSON ({error}); legal: a JSON object") from error
        if not isinstance(operation, dict):
            raise InvalidRequestError(f"OP: {text[:50]!r} is not legal; legal: a JSON object")
        answer = self._table.handle(operation, trusted=request.trusted)
        self._metrics.after(operation, self._table.states, self._table.ended)
        return {"ANSWER": text_tensor(json.dumps(answer))}
