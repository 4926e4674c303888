"""What the adapter reports of each request: metrics, and one entry in the JSON log."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minimax_h3.core.contracts import ENSEMBLE_STEPS
from minimax_h3.core.errors import H3Error
from minimax_h3.core.metrics import Meter
from minimax_h3.stages.base import StageRequest


class Observer:
    """Reports on the requests of one model.

    Args:
        model: its name.
        meter: where metrics go.
        log: of the model; entries at level DEBUG reach the JSON log only.
    """

    def __init__(self, model: str, meter: Meter, log: logging.Logger) -> None:
        self._model = model
        self._is_step = model in ENSEMBLE_STEPS
        self._meter = meter
        self._log = log

    def served(
        self,
        requests: Sequence[StageRequest | Exception],
        outcomes: Sequence[Mapping[str, Any] | Exception],
        seconds: float,
    ) -> None:
        """Report the requests of one `execute()` that took `seconds`."""
        for request, outcome in zip(requests, outcomes, strict=True):
            kind = error_kind(outcome)
            if kind:
                self._meter.add("h3_errors_total", stage=self._model, kind=kind)
            if self._is_step:
                self._step_served(request, outcome, seconds, kind)

    def _step_served(
        self,
        request: StageRequest | Exception,
        outcome: Mapping[str, Any] | Exception,
        seconds: float,
        kind: str,
    ) -> None:
        self._meter.observe("h3_stage_seconds", seconds, stage=self._model)
        taken = request.tensors if isinstance(request, StageRequest) else {}
        given: Mapping[str, Any] = outcome if isinstance(outcome, Mapping) else {}
        for direction, tensors in (("in", taken), ("out", given)):
            amount = sum(size_of(tensor) for tensor in tensors.values())
            self._meter.add("h3_bytes_total", amount, stage=self._model, direction=direction)
        facts = {"job_id": job_of(taken) or job_of(given), "seconds": round(seconds, 6)}
        self._log.debug("served", extra={**facts, **({"error_kind": kind} if kind else {})})


def error_kind(outcome: object) -> str:
    """The kind of an error as metrics and logs name it; empty when it is none."""
    if not isinstance(outcome, Exception):
        return ""
    return outcome.kind if isinstance(outcome, H3Error) else H3Error.kind


def size_of(tensor: object) -> int:
    """Bytes of a tensor's elements; 0 for one that the model forwards unread."""
    if not isinstance(tensor, np.ndarray):
        return 0
    if tensor.dtype == object:
        return sum(len(element) for element in tensor.reshape(-1))
    return tensor.nbytes


def job_of(tensors: Mapping[str, Any]) -> str:
    """The job of a request or answer that carries PLAN, or empty."""
    plan = tensors.get("PLAN")
    if not isinstance(plan, np.ndarray):
        return ""
    try:
        return str(json.loads(plan.reshape(-1)[0]).get("job_id", ""))
    except (ValueError, AttributeError):
        return ""  # a direct caller's own words
