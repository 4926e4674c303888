"""Seeded noise, always drawn on the CPU in fp32: device generators are not portable.

Two recipes, because the references disagree and a seed must keep its meaning:

- `per_stream`: every stream starts a generator of its own from the request's seed. The flattened
  audio noise is therefore a prefix of the flattened video noise. That is intended.
- `single_stream`: one generator for all, conditions first, then video, then audio.

Source: model sheet 3, pipeline sheet 1.5.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from minimax_h3.core.constants import (
    AUDIO_CHANNELS,
    AUDIO_ROW_WIDTH,
    CONDITION_TIME,
    VIDEO_LATENT_CHANNELS,
)
from minimax_h3.core.errors import InvalidRequestError

LatentShape: TypeAlias = tuple[int, int, int]
"""Latent frames, height and width of a clip or a condition."""

PER_STREAM, SINGLE_STREAM = "per_stream", "single_stream"


@dataclass(frozen=True, eq=False, slots=True)
class Noise:
    """Noise of one clip, fp32 on the CPU.

    Attributes:
        video: [24, T, h, w].
        audio_rows: [2 A, 32], channel-major.
        conditions: one [24, t, h, w] for each visual condition.
    """

    video: torch.Tensor
    audio_rows: torch.Tensor
    conditions: tuple[torch.Tensor, ...]


def draw_noise(
    recipe: str,
    seed: int,
    video_shape: LatentShape,
    audio_latents: int,
    condition_shapes: Sequence[LatentShape] = (),
) -> Noise:
    """Draw the noise of one clip.

    Args:
        recipe: `per_stream` or `single_stream`.
        seed: 0 .. 2^63 - 1.
        video_shape: target latent frames, height and width.
        audio_latents: per channel, A.
        condition_shapes: of each visual condition, in packed order.

    Raises:
        InvalidRequestError: unknown recipe.
    """
    frames = video_shape[0] + len(condition_shapes)
    if recipe == PER_STREAM:
        # A condition's noise is the head of a draw as long as the target plus all conditions.
        conditions = tuple(
            _video(_generator(seed), (max(frames, shape[0]), *shape[1:]))[:, : shape[0]]
            for shape in condition_shapes
        )
        video = _video(_generator(seed), video_shape)
        audio_rows = _audio(_generator(seed), audio_latents)
    elif recipe == SINGLE_STREAM:
        generator = _generator(seed)
        conditions = tuple(_video(generator, shape) for shape in condition_shapes)
        video = _video(generator, video_shape)
        audio_rows = _audio(generator, audio_latents)
    else:
        raise InvalidRequestError(
            f"noise_recipe: {recipe!r} is not legal; legal: {PER_STREAM}, {SINGLE_STREAM}"
        )
    return Noise(video, audio_rows, conditions)


def noise_condition(clean: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Mix a clean visual condition to the level it keeps through all steps, t = 0.999.

    Args:
        clean: fp32, any shape.
        noise: fp32, the same shape.

    Source: model sheet 1.6. The mix is done in fp32, where `1 - 0.999` is 0.00099998713.
    """
    time = torch.tensor(CONDITION_TIME, dtype=torch.float32)
    return time * clean + (1.0 - time) * noise


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _video(generator: torch.Generator, shape: LatentShape) -> torch.Tensor:
    size = (1, VIDEO_LATENT_CHANNELS, *shape)
    return torch.randn(size, generator=generator, dtype=torch.float32)[0]


def _audio(generator: torch.Generator, audio_latents: int) -> torch.Tensor:
    size = (AUDIO_CHANNELS * audio_latents, AUDIO_ROW_WIDTH)
    return torch.randn(size, generator=generator, dtype=torch.float32)
