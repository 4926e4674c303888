"""The denoising loop as diffusers runs it: its transformer, its two schedulers, its row times."""

from collections.abc import Sequence

import torch
from diffusers import MiniMaxH3Scheduler, MiniMaxH3Transformer3DModel
from diffusers.modular_pipelines.minimax_h3.before_denoise import (
    MiniMaxH3PrepareLayoutStep,
    MiniMaxH3Ref2VAPrepareLayoutStep,
    MiniMaxH3SetTimestepsStep,
    patchify_video_latents,
)
from diffusers.modular_pipelines.minimax_h3.references import (
    MiniMaxH3AudioReference,
    MiniMaxH3ImageReference,
    MiniMaxH3Reference,
    MiniMaxH3VideoReference,
)

from minimax_h3.core.conditions import AUDIO, IMAGE, KEYFRAME, Condition
from minimax_h3.core.plan import Plan

CONDITION_TIME = 0.999
PATCH = (1, 2, 2)


def reference_layout(
    text_tags: torch.Tensor, grid: tuple[int, int, int], audio_latents: int, packed: list[Condition]
) -> tuple:
    """Positions, tags, three index tensors and two counts, from the reference's own builders.

    Args:
        grid: target latent frames, height and width.
        packed: keyframes alone, or references alone.
    """
    if all(each.kind == KEYFRAME for each in packed):
        anchors = tuple("last" if each.frame_index else "first" for each in packed)
        return MiniMaxH3PrepareLayoutStep.build_packed_sequence(
            text_tags, *grid, audio_latents, PATCH, 2, 2, 0, anchors
        )
    visual = [
        torch.zeros(1, 24, each.latent_frames, each.latent_height, each.latent_width)
        for each in packed
        if each.num_frames
    ]
    sound = [torch.zeros(each.audio_rows, 32) for each in packed if each.audio_latents]
    return MiniMaxH3Ref2VAPrepareLayoutStep.build_ref2va_packed_sequence(
        text_tags,
        list(map(_reference, packed)),
        visual,
        sound,
        *grid,
        audio_latents,
        PATCH,
        2,
        2,
        0,
    )


def _reference(condition: Condition) -> MiniMaxH3Reference:
    """Only the modality, and whether a video has sound, is read from these."""
    sound = torch.zeros(2, 1) if condition.audio_latents else None
    if condition.kind == IMAGE:
        return MiniMaxH3ImageReference(image=None)
    if condition.kind == AUDIO:
        return MiniMaxH3AudioReference(audio=sound)
    return MiniMaxH3VideoReference(frames=[], audio=sound)


def diffusers_loop(
    transformer: MiniMaxH3Transformer3DModel,
    plan: Plan,
    seed: int,
    prompt_embeds: torch.Tensor,
    text_tags: torch.Tensor,
    condition_latents: Sequence[torch.Tensor] = (),
    audio_condition_rows: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Latents [24, T, h, w] and [2, 32, A] of one clip, noise drawn in the single-stream order.

    Args:
        condition_latents: clean, [1, 24, t, h, w] each.
        audio_condition_rows: of all reference sounds, [Na, 32].
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
        conditions.append(patchify_video_latents(noised, PATCH))
    noise = torch.randn((1, 24, *grid), generator=generator)
    video = torch.cat([*conditions, patchify_video_latents(noise, PATCH)])
    noise = torch.randn((2 * plan.audio_latents, 32), generator=generator)
    audio = noise if audio_condition_rows is None else torch.cat([audio_condition_rows, noise])
    positions, tags, video_at, audio_at, text_at, held, held_audio = reference_layout(
        text_tags, grid, plan.audio_latents, list(plan.conditions)
    )
    for t, audio_t in zip(scheduler.timesteps, audio_scheduler.timesteps, strict=True):
        times, index = MiniMaxH3SetTimestepsStep.build_row_timesteps(
            *(video_at, audio_at, held, held_audio, text_at.numel(), float(t), float(audio_t)),
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
        audio[held_audio:] = audio_scheduler.step(
            audio_velocity[0, held_audio:], audio_t, audio[held_audio:], return_dict=False
        )[0]
    cells = video[held:].reshape(grid[0], grid[1] // 2, grid[2] // 2, 24, 1, 2, 2)
    latents = cells.permute(3, 0, 4, 1, 5, 2, 6).reshape(24, *grid)
    sound = audio[held_audio:].reshape(2, plan.audio_latents, 32)
    return latents, sound.transpose(1, 2)
