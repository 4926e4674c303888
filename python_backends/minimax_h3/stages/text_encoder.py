"""Token ids and vision patches -> prompt embeddings, by the truncated Qwen3-VL."""

import json
import time
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from minimax_h3.core.plan import Plan
from minimax_h3.core.warm_up import TEXT_ROWS
from minimax_h3.stages.base import StageContext, StageRequest, text_tensor
from minimax_h3.stages.checkpoint import open_checkpoint
from minimax_h3.stages.job_client import JobClient
from minimax_h3.stages.offload import DeviceWeights, device_weights
from minimax_h3.stages.torch_device import Placement, choose_placement
from minimax_h3.stages.warm_up import warm_up
from minimax_h3.text.qwen import TruncatedQwen3VL
from minimax_h3.text.vision_inputs import vision_inputs


class TextEncoderStage:
    """Reads the residual stream after 50 decoder layers, before any norm."""

    name: ClassVar[str] = "text_encoder"

    def __init__(
        self,
        encoder: TruncatedQwen3VL,
        placement: Placement,
        weights: DeviceWeights,
        jobs: JobClient,
    ) -> None:
        self._encoder = encoder
        self._placement = placement
        self._jobs = jobs
        self._weights = weights

    @classmethod
    def load(cls, context: StageContext) -> "TextEncoderStage":
        """Load the 50 layers that the DiT reads; the rest of the file is checked, not loaded."""
        placement = choose_placement(context.config, context.log)
        manifest = open_checkpoint(context)
        weights = device_weights(context, placement)
        with weights.loading():
            encoder = TruncatedQwen3VL.load(manifest, placement.device, placement.dtype)
            weights.adopt(encoder)
            ids = np.zeros(TEXT_ROWS, np.int64)
            warm_up(context, placement, lambda plan: encoder.encode(ids))
        return cls(encoder, placement, weights, JobClient(context.call, context.log))

    def run(self, request: StageRequest) -> dict[str, NDArray[np.generic]]:
        """Encode one presentation.

        Raises:
            CancelledError: the job was cancelled before this stage.
        """
        plan = Plan.from_json(request.text("PLAN"))
        self._jobs.progress(plan, self.name)
        self._placement.watch_peak()
        began = time.perf_counter()
        with self._weights.on_device() as cost:
            embeds = self._encoder.encode(request.array("TOKEN_IDS"), self._vision(request))
            rows = embeds.float().cpu().numpy()[None]
        facts = {
            "seconds": round(time.perf_counter() - began, 6),
            **self._placement.facts(),
            **self._weights.facts(cost),
        }
        self._placement.release_cached()
        return {"PROMPT_EMBEDS": rows, "TEXT_ENCODER_INFO": text_tensor(json.dumps(facts))}

    def _vision(self, request: StageRequest) -> Mapping[str, Tensor] | None:
        """What the vision tower gets; None without vision blocks."""
        pixel_values = request.array("PIXEL_VALUES")
        if not len(pixel_values):
            return None
        return vision_inputs(
            request.array("TOKEN_IDS"),
            pixel_values,
            request.array("IMAGE_GRID_THW"),
            request.array("VIDEO_GRID_THW"),
            image_pad=self._encoder.image_pad,
            video_pad=self._encoder.video_pad,
            device=self._placement.device,
        )
