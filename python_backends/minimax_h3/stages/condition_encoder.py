"""Keyframes and references -> condition rows, by the encoder halves of both autoencoders."""

import json
import time
from collections.abc import Iterable
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minimax_h3.core.conditions import DRIVING_AUDIO, KEYFRAME, Condition
from minimax_h3.core.constants import AUDIO_CHANNELS, AUDIO_ROW_WIDTH, VIDEO_ROW_WIDTH
from minimax_h3.core.errors import H3Error
from minimax_h3.core.plan import Plan
from minimax_h3.media.prepare import load_condition
from minimax_h3.packing.patchify import audio_to_rows, video_to_rows
from minimax_h3.stages.base import StageContext, StageRequest, text_tensor
from minimax_h3.stages.checkpoint import open_checkpoint
from minimax_h3.stages.job_client import JobClient
from minimax_h3.stages.media_files import MediaFiles
from minimax_h3.stages.torch_device import Placement, choose_placement
from minimax_h3.stages.warm_up import warm_up
from minimax_h3.vae.audio_encoder import AudioEncoder
from minimax_h3.vae.loading import load_audio_encoder, load_video_encoder
from minimax_h3.vae.video_encoder import Frame, VideoEncoder


class ConditionEncoderStage:
    """Prepares and encodes the files of a job; a t2va job has none and costs nothing.

    Both encoders are loaded at the start, because every task type serves keyframes or references
    and any task may bring a driving sound: 1.1 GB for the released model, in fp32.
    """

    name: ClassVar[str] = "condition_encoder"

    def __init__(
        self,
        video: VideoEncoder,
        audio: AudioEncoder,
        files: MediaFiles,
        placement: Placement,
        jobs: JobClient,
    ) -> None:
        self._video = video
        self._audio = audio
        self._files = files
        self._placement = placement
        self._jobs = jobs

    @classmethod
    def load(cls, context: StageContext) -> "ConditionEncoderStage":
        """Load the encoder halves; the decoder halves are checked, not loaded."""
        placement = choose_placement(context.config, context.log)
        manifest = open_checkpoint(context)
        video = load_video_encoder(manifest, placement.device)
        warm_up(context, placement, lambda plan: video.encode([_black_frame(plan)]))
        return cls(
            video,
            load_audio_encoder(manifest, placement.device),
            MediaFiles(context.config.media_root),
            placement,
            JobClient(context.call, context.log),
        )

    def run(self, request: StageRequest) -> dict[str, NDArray[np.generic]]:
        """Encode the conditions of a plan, in its order.

        Raises:
            CancelledError: the job was cancelled; the work stopped at the last encoded clip.
            InvalidRequestError: a file is damaged, or no longer the one that was planned with.
        """
        plan = Plan.from_json(request.text("PLAN"))
        self._jobs.check_cancel(plan, self.name)
        self._placement.watch_peak()
        began = time.perf_counter()
        rows = [torch.zeros(0, VIDEO_ROW_WIDTH)]
        sounds = [torch.zeros(0, AUDIO_ROW_WIDTH)]
        driving: list[Tensor] = []
        for condition in plan.conditions:
            media = load_condition(condition, self._encoded(condition, request), plan)
            if condition.num_frames:
                rows.append(self._encode_frames(plan, condition, media.frames))
            if media.waveform is not None:
                sound = self._encode_sound(condition, media.waveform)
                (driving if condition.kind == DRIVING_AUDIO else sounds).append(sound)
        condition_rows, audio_rows = torch.cat(rows), torch.cat(sounds + driving)
        facts = {
            "seconds": round(time.perf_counter() - began, 6),
            "conditions": len(plan.conditions),
            "rows": len(condition_rows),
            "audio_rows": len(audio_rows),
            **self._placement.facts(),
        }
        self._placement.release_cached()
        return {
            "CONDITION_ROWS": condition_rows.numpy()[None],
            "AUDIO_CONDITION_ROWS": audio_rows.numpy()[None],
            "CONDITION_ENCODER_INFO": text_tensor(json.dumps(facts)),
        }

    def _encoded(self, condition: Condition, request: StageRequest) -> bytes:
        """The bytes of a condition's file, whichever way the client gave it."""
        field = "KEYFRAMES" if condition.kind == KEYFRAME else "REFERENCES"
        element = request.array(field).reshape(-1)[condition.source]
        return self._files.read(element, f"{field.lower()}[{condition.source}]")

    def _encode_frames(self, plan: Plan, condition: Condition, frames: Iterable[Frame]) -> Tensor:
        """Rows of the picture part; an encoded clip of 17 frames is the cancel boundary."""
        moments = []
        for clip in self._video.encode_clips(frames):
            moments.append(clip)
            self._jobs.check_cancel(plan, self.name)
        rows = video_to_rows(self._video.sample(moments))
        return _checked(rows, condition.video_rows, condition)

    def _encode_sound(self, condition: Condition, wave: NDArray[np.float32]) -> Tensor:
        latents = self._audio.encode(wave)
        rows = AUDIO_CHANNELS * condition.audio_latents
        return _checked(audio_to_rows(latents), rows, condition)


def _black_frame(plan: Plan) -> Frame:
    return np.zeros((plan.height, plan.width, 3), np.uint8)


def _checked(rows: Tensor, expected: int, condition: Condition) -> Tensor:
    if len(rows) != expected:
        raise H3Error(
            f"condition encoder: {len(rows)} rows of {condition.kind} {condition.source}, where "
            f"the plan has {expected}"
        )
    return rows
