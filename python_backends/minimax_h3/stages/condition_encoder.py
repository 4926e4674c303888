"""Conditions -> rows. A t2va request has none, so its answer is zero rows and costs nothing."""

import json
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from minimax_h3.core.constants import AUDIO_ROW_WIDTH, VIDEO_ROW_WIDTH
from minimax_h3.core.plan import Plan
from minimax_h3.stages.base import StageContext, StageRequest, text_tensor
from minimax_h3.stages.job_client import JobClient


class ConditionEncoderStage:
    """Emits the condition rows of a job; `preprocess` admits only tasks that have none."""

    name: ClassVar[str] = "condition_encoder"

    def __init__(self, jobs: JobClient) -> None:
        self._jobs = jobs

    @classmethod
    def load(cls, context: StageContext) -> "ConditionEncoderStage":
        """Loads no weights: no admitted task needs the VAE encoders."""
        return cls(JobClient(context.call, context.log))

    def run(self, request: StageRequest) -> dict[str, NDArray[np.generic]]:
        """Zero rows for both kinds of condition.

        Raises:
            CancelledError: the job was cancelled before this stage.
        """
        self._jobs.check_cancel(Plan.from_json(request.text("PLAN")), self.name)
        return {
            "CONDITION_ROWS": np.zeros((1, 0, VIDEO_ROW_WIDTH), np.float32),
            "AUDIO_CONDITION_ROWS": np.zeros((1, 0, AUDIO_ROW_WIDTH), np.float32),
            "CONDITION_ENCODER_INFO": text_tensor(json.dumps({"seconds": 0.0, "rows": 0})),
        }
