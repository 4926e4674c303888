"""Sounds, and where they click, as the piece for clicks takes them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from build_engines.train_tiny import vocabulary as words
from build_engines.train_tiny.batches import held_out_scenes, training_batch
from build_engines.train_tiny.click_code import click_onsets
from build_engines.train_tiny.scenes import SceneTensors, to_tensors
from build_engines.train_tiny.sound import render_sound
from minimax_h3.core.constants import AUDIO_HOP_SAMPLES, AUDIO_SAMPLE_RATE_HZ
from minimax_h3.core.lengths import audio_latents_from_frames

_CANVAS = words.CANVASES[0]
_HELD_OUT_FRAMES = 124
HELD_OUT_LATENTS = audio_latents_from_frames(_HELD_OUT_FRAMES)


@dataclass(frozen=True, slots=True)
class ExcerptKind:
    """Excerpts that are computed once.

    Attributes:
        count: of all of them.
        latents: length of each.
        bouncing: share with a bounce.
        chunk: how many are rendered and encoded at once.
        batch: drawn for a step.
    """

    count: int
    latents: int
    bouncing: float
    chunk: int
    batch: int = 1


@dataclass(slots=True)
class Excerpts:
    """What the network reads and should say.

    Attributes:
        features: `click_features`, [B, 16, L * 100].
        hidden: the cleared encoder's trunk, [B, 128, L].
        code: [B, 2, L].
    """

    features: Tensor
    hidden: Tensor
    code: Tensor

    def to(self, device: torch.device | str) -> "Excerpts":
        """The same on another device."""
        return Excerpts(*(tensor.to(device) for tensor in self._tensors()))

    def copy_(self, other: "Excerpts") -> None:
        """Take over the values of others of the same shape, in place."""
        for ours, theirs in zip(self._tensors(), other._tensors(), strict=True):
            ours.copy_(theirs)

    def some(self, places: Tensor) -> "Excerpts":
        """Those at some places."""
        return Excerpts(*(tensor[places] for tensor in self._tensors()))

    def _tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.features, self.hidden, self.code


def sounds(scenes: SceneTensors, latents: int, *, clicks: bool = True) -> tuple[Tensor, Tensor]:
    """One channel of each scene, left and right in turn, [B, 1, samples].

    Args:
        scenes: a batch.
        latents: length of the sounds.
        clicks: without them, the tones alone.

    Returns:
        The sound, and the onsets of the scene's clicks.
    """
    samples = latents * AUDIO_HOP_SAMPLES
    stereo = (
        render_sound(scenes, *_CANVAS, samples, clicks=clicks),
        click_onsets(scenes, _CANVAS[0], samples),
    )
    side = torch.arange(len(scenes.ground)) % 2
    wave, onsets = (sound[torch.arange(len(side)), side][:, None] for sound in stereo)
    return wave, onsets


def training_chunks(seed: int, kind: ExcerptKind) -> list[SceneTensors]:
    """Scenes of all excerpts of a kind, in parts that are rendered at once."""
    # Numbers of scenes are those of steps: kinds of other sizes would share the first of them.
    begin = kind.latents * 100_000 // kind.chunk
    seconds = kind.latents * AUDIO_HOP_SAMPLES / AUDIO_SAMPLE_RATE_HZ
    bouncing = round(kind.bouncing * kind.chunk)
    return [
        training_batch(seed, begin + index, kind.chunk, _CANVAS, seconds, with_bounce=bouncing)
        for index in range(max(1, kind.count // kind.chunk))
    ]


def held_out_chunks(count: int, chunk: int = 6) -> list[SceneTensors]:
    """Held-out clips, from their start on, in parts likewise."""
    scenes = held_out_scenes(count, _CANVAS, _HELD_OUT_FRAMES)
    return [to_tensors(scenes[first : first + chunk]) for first in range(0, count, chunk)]


def joined(parts: list[Excerpts]) -> Excerpts:
    """All of them as one."""
    columns = zip(*((part.features, part.hidden, part.code) for part in parts), strict=True)
    return Excerpts(*(torch.cat(column) for column in columns))
