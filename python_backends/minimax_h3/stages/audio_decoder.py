"""Audio latents -> a 32 kHz stereo waveform, always in FP32."""

import json
import time
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from minimax_h3.core.constants import AUDIO_CHANNELS, AUDIO_ROW_WIDTH
from minimax_h3.core.plan import Plan
from minimax_h3.stages.base import StageContext, StageRequest, text_tensor
from minimax_h3.stages.checkpoint import open_checkpoint
from minimax_h3.stages.job_client import JobClient
from minimax_h3.stages.torch_device import Placement, choose_placement
from minimax_h3.stages.warm_up import warm_up
from minimax_h3.vae.audio_decoder import AudioDecoder, sanity
from minimax_h3.vae.loading import load_audio_vae


class AudioDecoderStage:
    """Decodes beside the video decoder."""

    name: ClassVar[str] = "audio_decoder"

    def __init__(self, decoder: AudioDecoder, placement: Placement, jobs: JobClient) -> None:
        self._decoder = decoder
        self._placement = placement
        self._jobs = jobs

    @classmethod
    def load(cls, context: StageContext) -> "AudioDecoderStage":
        """Load the decoder half of the audio VAE."""
        chosen = choose_placement(context.config, context.log, beside=1)
        placement = replace(chosen, dtype=torch.float32)
        manifest = open_checkpoint(context)
        decoder = load_audio_vae(manifest, placement.device)
        warm_up(context, placement, lambda plan: decoder.decode(_silence(plan)))
        return cls(decoder, placement, JobClient(context.call, context.log))

    def run(self, request: StageRequest) -> dict[str, NDArray[np.generic]]:
        """Decode the sound of every clip of a job.

        Raises:
            CancelledError: the job was cancelled.
        """
        plan = Plan.from_json(request.text("PLAN"))
        self._placement.watch_peak()
        began = time.perf_counter()
        waves = []
        for latents in request.array("AUDIO_LATENTS"):
            self._jobs.check_cancel(plan, self.name)
            waves.append(self._decoder.decode(latents))
        facts = {
            "seconds": round(time.perf_counter() - began, 6),
            **self._placement.facts(),
            "clips": [sanity(wave) for wave in waves],
        }
        return {
            "AUDIO": np.stack(waves),
            "AUDIO_DECODER_INFO": text_tensor(json.dumps(facts)),
        }


def _silence(plan: Plan) -> NDArray[np.float32]:
    return np.zeros((AUDIO_CHANNELS, AUDIO_ROW_WIDTH, plan.audio_latents), np.float32)
