"""Video latents -> a silent H.264 stream, clip by clip; raw frames never leave unless asked for."""

import itertools
import json
import time
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from minimax_h3.core.constants import VAE_CLIP_LATENTS, VAE_TAIL_LATENTS, VIDEO_LATENT_CHANNELS
from minimax_h3.core.errors import H3Error
from minimax_h3.core.plan import Plan
from minimax_h3.media.h264 import ThreadedVideoEncoder
from minimax_h3.stages.base import StageContext, StageRequest, text_tensor
from minimax_h3.stages.checkpoint import open_checkpoint
from minimax_h3.stages.job_client import JobClient
from minimax_h3.stages.offload import DeviceWeights, device_weights
from minimax_h3.stages.torch_device import Placement, choose_placement
from minimax_h3.stages.warm_up import warm_up
from minimax_h3.vae.loading import load_video_vae
from minimax_h3.vae.video_decoder import VideoDecoder, Wanted


class VideoDecoderStage:
    """Decodes one clip while the one before it is encoded."""

    name: ClassVar[str] = "video_decoder"

    def __init__(
        self,
        decoder: VideoDecoder,
        placement: Placement,
        weights: DeviceWeights,
        jobs: JobClient,
    ) -> None:
        self._decoder = decoder
        self._placement = placement
        self._jobs = jobs
        self._weights = weights

    @classmethod
    def load(cls, context: StageContext) -> "VideoDecoderStage":
        """Load the decoder half of the video VAE."""
        placement = choose_placement(context.config, context.log, beside=1)
        manifest = open_checkpoint(context)
        on_gpu = placement.device.type == "cuda"
        if on_gpu and context.config.dtype == "auto":
            # Eleven bits where BF16 has eight; the release decodes so. Norms stay FP32.
            placement = replace(placement, dtype=torch.float16)
        tiles = context.config.tiles_per_batch(on_gpu=on_gpu)
        ops = context.config.decoder_blocks(on_gpu=on_gpu)
        context.log.info(
            "video decoder: %s, %s blocks, %d tiles at a time", placement.dtype, ops, tiles
        )
        weights = device_weights(context, placement)
        with weights.loading():
            decoder = load_video_vae(manifest, placement.device, placement.dtype, tiles, ops)
            weights.adopt(*decoder.modules)
            stage = cls(decoder, placement, weights, JobClient(context.call, context.log))
            warm_up(context, placement, stage._decode_two_clips)
        return stage

    def run(self, request: StageRequest) -> dict[str, NDArray[np.generic]]:
        """Decode and encode every clip of a job.

        Raises:
            CancelledError: the job was cancelled; the work stopped at the last decoded clip.
        """
        plan = Plan.from_json(request.text("PLAN"))
        self._placement.watch_peak()
        began = time.perf_counter()
        with self._weights.on_device() as cost:
            decoded = [
                self._decode(plan, index, latents)
                for index, latents in enumerate(request.array("VIDEO_LATENTS"))
            ]
        facts = {
            "seconds": round(time.perf_counter() - began, 6),
            "decode_s": round(sum(clip.decode_s for clip in decoded), 6),
            "last_clip_to_file_s": round(decoded[-1].finish_s, 6),
            **self._placement.facts(),
            **self._weights.facts(cost),
        }
        frames = [np.concatenate(clip.frames) for clip in decoded if clip.frames]
        if len(frames) != len(decoded) * plan.return_frames:
            raise H3Error(f"return_frames: frames of {len(frames)} of {len(decoded)} clips")
        return {
            "VIDEO_STREAM": np.array([clip.stream for clip in decoded], dtype=object),
            "FRAMES": np.stack(frames) if frames else np.zeros((0, 0, 0, 0, 3), np.uint8),
            "VIDEO_DECODER_INFO": text_tensor(json.dumps(facts)),
        }

    def _decode_two_clips(self, plan: Plan) -> None:
        """The least that has every kernel of a decode of this canvas in it."""
        count = 2 * VAE_CLIP_LATENTS + VAE_TAIL_LATENTS
        shape = (VIDEO_LATENT_CHANNELS, count, plan.latent_height, plan.latent_width)
        for _ in self._decoder.decode(np.zeros(shape, np.float32), self._wanted(plan)):
            pass

    def _wanted(self, plan: Plan) -> Wanted:
        """A GPU converts for the encoder itself; on a CPU libswscale is the faster one."""
        on_gpu = self._placement.device.type == "cuda"
        return Wanted(rgb=plan.return_frames or not on_gpu, yuv=on_gpu)

    def _decode(self, plan: Plan, output: int, latents: NDArray[np.float32]) -> "_Decoded":
        """One output; a decoded VAE clip is the cancel boundary."""
        total = (plan.latent_frames - VAE_TAIL_LATENTS) // VAE_CLIP_LATENTS
        result = _Decoded()
        with ThreadedVideoEncoder(
            plan.width, plan.height, plan.video_preset, plan.video_crf
        ) as encoder:
            wanted = self._wanted(plan)
            clips = self._decoder.decode(latents, wanted)
            for index in itertools.count():
                self._jobs.progress(
                    plan, self.name, step=min(index, total), num_steps=total, clip=output
                )
                began = time.perf_counter()
                clip = next(clips, None)
                result.decode_s += time.perf_counter() - began
                if clip is None:
                    break
                pictures = clip.yuv if wanted.yuv else clip.rgb
                assert pictures is not None
                encoder.push(pictures)
                if plan.return_frames and clip.rgb is not None:
                    result.frames.append(clip.rgb)
            began = time.perf_counter()
            result.stream = encoder.finish()
            result.finish_s = time.perf_counter() - began
        return result


@dataclass(slots=True)
class _Decoded:
    """One output: its stream, its frames [k, H, W, 3] if asked for, and where the seconds went."""

    stream: bytes = b""
    frames: list[NDArray[np.uint8]] = field(default_factory=list)
    decode_s: float = 0.0
    finish_s: float = 0.0
