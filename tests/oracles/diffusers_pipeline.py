"""The diffusers modular pipeline on a diffusers-layout checkpoint: the oracle of whole clips.

All three workflows run diffusers' own blocks, from decoded files to frames. The text encoder's
processor needs torchvision, so `vision_processor` stands in for that one component.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLMiniMaxH3, MiniMaxH3Transformer3DModel
from diffusers.models.autoencoders.autoencoder_kl_minimax_h3_audio import (
    AutoencoderKLMiniMaxH3Audio,
)
from diffusers.modular_pipelines.minimax_h3.modular_blocks_minimax_h3 import MiniMaxH3Blocks
from diffusers.schedulers import MiniMaxH3Scheduler
from numpy.typing import NDArray
from oracles.vision_processor import ReferenceProcessor
from transformers import PreTrainedTokenizerFast, Qwen3VLForConditionalGeneration


@dataclass(frozen=True)
class ReferenceClip:
    """What the reference makes of one request.

    Attributes:
        prompt_embeds: [1, L, width]; text_tags: [L].
        condition_latents: [1, 24, t, h, w] of each visual condition, clean.
        audio_condition_rows: [2 a, 32] of each sound.
        layout: `position_ids`, `token_tags`, `video_indices`, `audio_indices`, `text_indices`.
        video_latents: [24, T, h, w]; audio_latents: [2, 32, A].
        frames: uint8 [F, H, W, 3]; wave: fp32 [2, samples].
    """

    prompt_embeds: torch.Tensor
    text_tags: torch.Tensor
    condition_latents: list[torch.Tensor]
    audio_condition_rows: list[torch.Tensor]
    layout: dict[str, torch.Tensor]
    video_latents: NDArray[np.float32]
    audio_latents: NDArray[np.float32]
    frames: NDArray[np.uint8]
    wave: NDArray[np.float32]


LAYOUT = ("position_ids", "token_tags", "video_indices", "audio_indices", "text_indices")


class ReferencePipeline:
    """t2va, fl2va and ref2va by diffusers' own blocks, FP32 on the CPU.

    Args:
        root: a checkpoint in the diffusers layout, with one transformer or both.
        config: `canvas_short_edge`, `canvas_max_pixels`, `reference_image_short_edge`.
    """

    def __init__(self, root: Path, **config: int) -> None:
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(root / "tokenizer" / "tokenizer.json")
        )
        pads = map(tokenizer.convert_tokens_to_ids, ("<|image_pad|>", "<|video_pad|>"))
        self.pipe = MiniMaxH3Blocks().init_pipeline()
        self.pipe.update_components(
            text_encoder=Qwen3VLForConditionalGeneration.from_pretrained(
                root / "text_encoder", dtype=torch.float32
            ),
            tokenizer=tokenizer,
            processor=ReferenceProcessor(*pads),
            vae=AutoencoderKLMiniMaxH3.from_pretrained(root / "vae"),
            audio_vae=AutoencoderKLMiniMaxH3Audio.from_pretrained(root / "audio_vae"),
            scheduler=MiniMaxH3Scheduler.from_pretrained(root / "scheduler"),
            audio_scheduler=MiniMaxH3Scheduler.from_pretrained(root / "audio_scheduler"),
            **{
                name: MiniMaxH3Transformer3DModel.from_pretrained(
                    root / name, torch_dtype=torch.float32
                )
                for name in ("transformer", "transformer_ref")
                if (root / name).is_dir()
            },
            **config,
        )
        self.pipe.set_progress_bar_config(disable=True)

    def generate(self, prompt: str, num_points: int, seed: int, **request: object) -> ReferenceClip:
        """One clip; the noise is drawn in this pipeline's order from one generator.

        Args:
            prompt: verbatim.
            num_points: sigma points.
            seed: of the generator.
            request: `width`, `height`, `num_frames`; `image` and `last_image`, or `references`.
        """
        state = self.pipe(
            prompt=prompt,
            num_inference_steps=num_points,
            generator=torch.Generator().manual_seed(seed),
            output_type="pt",
            **request,
        )
        video = state.get("videos")[0]  # [F, 3, H, W] in [0, 1]
        frames = (video * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
        return ReferenceClip(
            state.get("prompt_embeds"),
            state.get("text_token_tags"),
            state.get("condition_latents") or [],
            state.get("audio_condition_latents") or [],
            {name: state.get(name) for name in LAYOUT},
            state.get("latents")[0].numpy(),
            state.get("audio_latents").numpy(),
            frames.contiguous().numpy(),
            state.get("audio")[0].numpy(),
        )
