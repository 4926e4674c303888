"""The diffusers modular t2va pipeline on a diffusers-layout checkpoint: the oracle of whole clips.

The conditioner's image processor needs torchvision; a text-only request uses one method of the
processor, which is given here by hand.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLMiniMaxH3, MiniMaxH3Transformer3DModel
from diffusers.models.autoencoders.autoencoder_kl_minimax_h3_audio import (
    AutoencoderKLMiniMaxH3Audio,
)
from diffusers.modular_pipelines.minimax_h3.encoders import MiniMaxH3TextEncoderStep
from diffusers.modular_pipelines.minimax_h3.modular_blocks_minimax_h3 import (
    MiniMaxH3CoreDenoiseStep,
    MiniMaxH3DecodeStep,
)
from diffusers.modular_pipelines.modular_pipeline import SequentialPipelineBlocks
from diffusers.schedulers import MiniMaxH3Scheduler
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast, Qwen3VLForConditionalGeneration


@dataclass(frozen=True)
class ReferenceClip:
    """What the reference makes of one request.

    Attributes:
        video_latents: [24, T, h, w]; audio_latents: [2, 32, A].
        frames: uint8 [F, H, W, 3]; wave: fp32 [2, samples].
    """

    video_latents: NDArray[np.float32]
    audio_latents: NDArray[np.float32]
    frames: NDArray[np.uint8]
    wave: NDArray[np.float32]


class _TextOnlyProcessor:
    def create_mm_token_type_ids(self, token_ids: list[list[int]]) -> list[list[int]]:
        return [[0] * len(row) for row in token_ids]


class ReferencePipeline:
    """t2va by diffusers' own blocks, FP32 on the CPU."""

    def __init__(self, root: Path) -> None:
        blocks = SequentialPipelineBlocks.from_blocks_dict(
            {
                "text_encoder": MiniMaxH3TextEncoderStep(),
                "denoise": MiniMaxH3CoreDenoiseStep(),
                "decode": MiniMaxH3DecodeStep(),
            }
        )
        self.pipe = blocks.init_pipeline()
        self.pipe.update_components(
            text_encoder=Qwen3VLForConditionalGeneration.from_pretrained(
                root / "text_encoder", dtype=torch.float32
            ),
            tokenizer=PreTrainedTokenizerFast(
                tokenizer_file=str(root / "tokenizer" / "tokenizer.json")
            ),
            processor=_TextOnlyProcessor(),
            transformer=MiniMaxH3Transformer3DModel.from_pretrained(
                root / "transformer", torch_dtype=torch.float32
            ),
            vae=AutoencoderKLMiniMaxH3.from_pretrained(root / "vae"),
            audio_vae=AutoencoderKLMiniMaxH3Audio.from_pretrained(root / "audio_vae"),
            scheduler=MiniMaxH3Scheduler.from_pretrained(root / "scheduler"),
            audio_scheduler=MiniMaxH3Scheduler.from_pretrained(root / "audio_scheduler"),
        )
        self.pipe.set_progress_bar_config(disable=True)

    def generate(
        self, prompt: str, width: int, height: int, num_frames: int, num_points: int, seed: int
    ) -> ReferenceClip:
        """One clip; the noise is drawn in this pipeline's order from one generator."""
        state = self.pipe(
            prompt=prompt,
            width=width,
            height=height,
            num_frames=num_frames,
            num_inference_steps=num_points,
            generator=torch.Generator().manual_seed(seed),
            output_type="pt",
        )
        video = state.get("videos")[0]  # [F, 3, H, W] in [0, 1]
        frames = (video * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
        return ReferenceClip(
            state.get("latents")[0].numpy(),
            state.get("audio_latents").numpy(),
            frames.contiguous().numpy(),
            state.get("audio")[0].numpy(),
        )
