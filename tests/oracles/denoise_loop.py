"""The denoising loop as diffusers runs it: its transformer, its two schedulers, its row times."""

from collections.abc import Sequence

import torch
from diffusers import MiniMaxH3Scheduler, MiniMaxH3Transformer3DModel
from diffusers.modular_pipelines.minimax_h3.before_denoise import (
    MiniMaxH3PrepareLayoutStep,
    MiniMaxH3SetTimestepsStep,
    patchify_video_latents,
)

from minimax_h3.core.plan import Plan

CONDITION_TIME = 0.999


def diffusers_loop(
    transformer: MiniMaxH3Transformer3DModel,
    plan: Plan,
    seed: int,
    prompt_embeds: torch.Tensor,
    text_tags: torch.Tensor,
    condition_latents: Sequence[torch.Tensor] = (),
    anchors: tuple[str, ...] = (),
) -> tuple[torch.Tensor, torch.Tensor]:
    """Latents [24, T, h, w] and [2, 32, A] of one clip, noise drawn in the single-stream order.

    Args:
        condition_latents: clean, [1, 24, 1, h, w] each.
    """
    scheduler = MiniMaxH3Scheduler(shift=plan.flow_shift)
    audio_scheduler = MiniMaxH3Scheduler(shift=plan.audio_flow_shift)
    scheduler.set_timesteps(plan.num_points)
    audio_scheduler.set_timesteps(plan.num_points)
    generator = torch.Generator().manual_seed(seed)
    grid = (plan.latent_frames, plan.latent_height, plan.latent_width)
    conditions = []
    for clean in condition_latents:
        noise = torch.randn(clean.shape, generator=generator)
        noised = scheduler.scale_noise(clean, CONDITION_TIME, noise)
        conditions.append(patchify_video_latents(noised, (1, 2, 2)))
    noise = torch.randn((1, 24, *grid), generator=generator)
    video = torch.cat([*conditions, patchify_video_latents(noise, (1, 2, 2))])
    audio = torch.randn((2 * plan.audio_latents, 32), generator=generator)
    positions, tags, video_at, audio_at, text_at, held, _ = (
        MiniMaxH3PrepareLayoutStep.build_packed_sequence(
            text_tags, *grid, plan.audio_latents, (1, 2, 2), 2, 2, 0, anchors
        )
    )
    for t, audio_t in zip(scheduler.timesteps, audio_scheduler.timesteps, strict=True):
        times, index = MiniMaxH3SetTimestepsStep.build_row_timesteps(
            *(video_at, audio_at, held, 0, text_at.numel(), float(t), float(audio_t)),
            max(float(t), CONDITION_TIME),
            1.0,
        )
        video_velocity, audio_velocity = transformer(
            *(video[None], audio[None], prompt_embeds[None], times, index, tags, positions),
            *(video_at, audio_at, text_at),
            return_dict=False,
        )
        video[held:] = scheduler.step(video_velocity[0, held:], t, video[held:], return_dict=False)[
            0
        ]
        audio = audio_scheduler.step(audio_velocity[0], audio_t, audio, return_dict=False)[0]
    cells = video[held:].reshape(grid[0], grid[1] // 2, grid[2] // 2, 24, 1, 2, 2)
    latents = cells.permute(3, 0, 4, 1, 5, 2, 6).reshape(24, *grid)
    return latents, audio.reshape(2, plan.audio_latents, 32).transpose(1, 2)
