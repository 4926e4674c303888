"""Clips of a latent video: which latents each one takes and how its frames join the next.

A clip decodes 7 latents into 28 frames. Frames 3..19 are its own 17; frames 23..27 are kept and
faded into the first 5 frames of the next clip, or close the video after the last one.

Source: model sheet section 4.1, "Frame rule" and "Temporal decode".
"""

from dataclasses import dataclass

from torch import Tensor

from minimax_h3.core.constants import (
    VAE_CLIP_FRAMES,
    VAE_CLIP_LATENTS,
    VAE_TAIL_FRAMES,
    VAE_TAIL_LATENTS,
    VAE_TEMPORAL_STRIDE,
)
from minimax_h3.vae.tiling import blend

WINDOW_LATENTS = VAE_CLIP_LATENTS + VAE_TAIL_LATENTS
WINDOW_FRAMES = WINDOW_LATENTS * VAE_TEMPORAL_STRIDE
# 17 frames fill 5 latents of 4 frames but for 3 in front, which the encoder padded.
LEAD_FRAMES = VAE_CLIP_LATENTS * VAE_TEMPORAL_STRIDE - VAE_CLIP_FRAMES
OWN_FRAMES = slice(LEAD_FRAMES, LEAD_FRAMES + VAE_CLIP_FRAMES)
KEPT_FRAMES = slice(WINDOW_FRAMES - VAE_TAIL_FRAMES, WINDOW_FRAMES)
MIN_LATENTS = VAE_TAIL_LATENTS + 1


@dataclass(frozen=True, slots=True)
class ClipPlan:
    """How a latent video is cut into clips.

    Attributes:
        latents: latent frames given.
        num_clips: decoder windows.
        pad_latents: copies of the last latent that fill the last window; 0 for `5 n + 2` latents.
        num_frames: pixel frames of the whole video.
    """

    latents: int
    num_clips: int
    pad_latents: int
    num_frames: int

    def window(self, clip: int) -> range:
        """Latents of a clip; those beyond the last given one stand for copies of it."""
        first = clip * VAE_CLIP_LATENTS
        return range(first, first + WINDOW_LATENTS)


def plan_clips(latents: int) -> ClipPlan:
    """Cut `latents` latent frames into clips; 37 give 7 clips and 124 frames.

    A length that is not `5 n + 2` is filled up with copies of its last latent, whose frames are cut
    off again: 36 give 120 frames.

    Raises:
        ValueError: fewer than 3 latents, which no clip can hold.
    """
    if latents < MIN_LATENTS:
        raise ValueError(f"latent frames must be {MIN_LATENTS} or more, got {latents}")
    num_clips = -(-(latents - VAE_TAIL_LATENTS) // VAE_CLIP_LATENTS)
    filled = num_clips * VAE_CLIP_LATENTS + VAE_TAIL_LATENTS
    # The first latent of a group of five covers one pixel frame, the others four.
    surplus = sum(
        VAE_TEMPORAL_STRIDE if index % VAE_CLIP_LATENTS else 1 for index in range(latents, filled)
    )
    frames = num_clips * VAE_CLIP_FRAMES + VAE_TAIL_FRAMES - surplus
    return ClipPlan(latents, num_clips, filled - latents, frames)


def cross_fade(kept: Tensor | None, own: Tensor) -> Tensor:
    """Fade the frames kept from the clip before into this clip's own frames.

    Args:
        kept: fp32 [C, 5, H, W], or None for the first clip.
        own: fp32 [C, 17, H, W].

    Returns:
        fp32 of the shape of `own`.
    """
    return own if kept is None else blend(kept, own, VAE_TAIL_FRAMES, dim=-3)
