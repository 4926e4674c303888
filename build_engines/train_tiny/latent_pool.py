"""A pool of encoded clips on the device: made at the start of a piece, drawn from ever after."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from build_engines.train_tiny.architecture import new_audio_vae, new_video_vae
from build_engines.train_tiny.captions import caption
from build_engines.train_tiny.documents import CLIP, PICTURE, REFERENCE_TASKS, VOICE, Format
from build_engines.train_tiny.fast_encoder import encode_moments
from build_engines.train_tiny.picture import render_frames
from build_engines.train_tiny.references import CLIP as CLIP_REFERENCE
from build_engines.train_tiny.references import (
    CLIP_FRAMES,
    PICTURE_AND_TONE,
    Reference,
    draw_reference,
    reference_sound,
)
from build_engines.train_tiny.references import PICTURE as PICTURE_REFERENCE
from build_engines.train_tiny.scenes import Scene, draw_scene, to_tensors
from build_engines.train_tiny.sound import render_sound
from build_engines.train_tiny.text_model import TextModel
from build_engines.train_tiny.vae_files import resume_audio_vae, resume_video_vae
from minimax_h3.core.constants import (
    AUDIO_CHANNELS,
    PIXEL_MEAN,
    PIXEL_STD,
    PRESENTED_FRAME_STEP,
    VAE_CLIP_FRAMES,
    VAE_TAIL_FRAMES,
    VISION_PAIR_FRAMES,
)
from minimax_h3.core.lengths import audio_latents_from_frames, audio_samples_from_latents
from minimax_h3.packing.patchify import audio_to_rows, video_to_rows

CAPTIONS_OF_A_SCENE = 4
_REFERENCES = {PICTURE: PICTURE_REFERENCE, VOICE: PICTURE_AND_TONE, CLIP: CLIP_REFERENCE}


@dataclass(slots=True)
class Pool:
    """Encoded documents of one format and one set of conditions, fp16 on the device.

    Attributes:
        prompts: some for each item.
        video: target rows [N, V, 96].
        audio: target rows [N, A, 32].
        visual: clean condition rows [N, C, 96], or none: C is 0.
        sound: condition rows [N, a, 32].
        features: vision features [N, P, width], of all pictures in order.
        taps: likewise [N, 3, P, width].
    """

    prompts: list[tuple[str, ...]]
    video: Tensor
    audio: Tensor
    visual: Tensor
    sound: Tensor
    features: Tensor
    taps: Tensor


class Encoders:
    """Both trained autoencoders and the vision tower, on a device."""

    def __init__(self, vaes: Path, text: TextModel, device: torch.device) -> None:
        """Load.

        Args:
            vaes: folder with `video_vae/` and `audio_vae/`.
            text: for its vision tower; on the device.
            device: where to encode.

        Raises:
            CheckpointError: an autoencoder is missing.
        """
        self.device = device
        self._dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._text = text
        self._video: Any = new_video_vae(0)
        self._audio: Any = new_audio_vae(0)
        resume_video_vae(self._video, vaes / "video_vae")
        resume_audio_vae(self._audio, vaes / "audio_vae")
        self._video = self._video.to(device).eval().requires_grad_(False)
        self._audio = self._audio.to(device).eval().requires_grad_(False)
        self._video_statistics = self._statistics(vaes / "video_vae")
        self._audio_statistics = self._statistics(vaes / "audio_vae")
        self._pixels = [
            torch.tensor(values, device=device).view(-1, 1, 1, 1)
            for values in (PIXEL_MEAN, PIXEL_STD)
        ]

    def _statistics(self, folder: Path) -> list[Tensor]:
        config = json.loads((folder / "config.json").read_text())
        return [
            torch.tensor(config[f"latents_{name}"], device=self.device) for name in ("mean", "std")
        ]

    def video_rows(self, frames: Tensor, *, sampled: bool = False) -> Tensor:
        """Rows of pictures (one frame) or clips (17 n + 5 frames).

        Args:
            frames: [N, 3, F, H, W] in [0, 1].
            sampled: draw from the posterior, as conditions are; else its mean.

        Returns:
            fp32 [N, rows, 96].
        """
        mean, std = self._pixels
        pixels = (frames - mean) / std
        count, length = pixels.shape[0], pixels.shape[2]
        whole = max(0, length - VAE_TAIL_FRAMES) if length > 1 else 0
        parts = []
        if whole:
            size = (*pixels.shape[:2], -1, VAE_CLIP_FRAMES, *pixels.shape[3:])
            clips = pixels[:, :, :whole].reshape(size).transpose(1, 2)
            moments = encode_moments(self._video, clips.flatten(0, 1), self._dtype)
            by_clip = moments.view(count, -1, *moments.shape[1:])
            parts.append(by_clip.transpose(1, 2).flatten(2, 3))
        parts.append(encode_moments(self._video, pixels[:, :, whole:], self._dtype))
        latents, log_variance = torch.cat(parts, dim=2).chunk(2, dim=1)
        if sampled:
            deviation = torch.exp(0.5 * log_variance.clamp(-30, 20))
            latents = latents + deviation * torch.randn_like(latents)
        middle, spread = (value.view(-1, 1, 1, 1) for value in self._video_statistics)
        return torch.stack([video_to_rows(each) for each in (latents - middle) / spread])

    def audio_rows(self, waves: Tensor) -> Tensor:
        """Rows of sounds [N, 2, samples], fp32 [N, 2 A, 32]."""
        latents = self._audio.encode(waves.flatten(0, 1)[:, None]).latent_dist.mode()
        middle, spread = (value.view(-1, 1) for value in self._audio_statistics)
        normalised = (latents - middle) / spread
        stereo = normalised.view(-1, AUDIO_CHANNELS, *latents.shape[1:])
        return torch.stack([audio_to_rows(each) for each in stereo])

    def seen(self, pictures: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Features and taps of several pictures (or pairs of frames) of the same documents."""
        looks = [self._text.see(picture) for picture in pictures]
        features = torch.cat([look.features for look in looks], dim=1)
        return features, torch.cat([look.taps for look in looks], dim=2)


@torch.no_grad()
def fill_pool(
    encoders: Encoders,
    form: Format,
    task: str,
    seed: int,
    count: int,
    *,
    chunk: int = 16,
    seconds: float = float("inf"),
    say: Callable[[str], None] | None = None,
) -> Pool:
    """Draw, render and encode documents.

    Args:
        encoders: on the pool's device.
        form: of the targets.
        task: one of `REFERENCE_TASKS`, or anything else for targets with both keyframes.
        seed: of the scenes.
        count: most documents.
        chunk: documents that are rendered together.
        seconds: time after which no further chunk is begun.
        say: gets a line at the end.
    """
    began, chunks, prompts = time.monotonic(), [], []
    make = _references if task in REFERENCE_TASKS else _keyframes
    for first in range(0, count, chunk):
        indices = range(first, min(first + chunk, count))
        made, texts = make(encoders, form, task, seed, indices)
        chunks.append([part.half() for part in made])
        prompts += texts
        if encoders.device.type == "cuda":
            torch.cuda.synchronize()  # or the clock would count what is asked for, not what is done
        if time.monotonic() - began > seconds:
            break
    pool = Pool(prompts, *(torch.cat(parts) for parts in zip(*chunks, strict=True)))
    if say is not None:
        say(f"{form.name} {task}: {len(prompts)} documents in {time.monotonic() - began:.1f} s")
    return pool


def _targets(encoders: Encoders, form: Format, scenes: list[Scene]) -> tuple[Tensor, Tensor]:
    """Frames [N, 3, F, H, W] and waves [N, 2, samples]."""
    tensors = to_tensors(scenes).to(encoders.device)
    samples = audio_samples_from_latents(audio_latents_from_frames(form.num_frames))
    frames = render_frames(tensors, form.width, form.height, form.num_frames)
    return frames, render_sound(tensors, form.width, form.height, samples)


def _keyframes(
    encoders: Encoders, form: Format, task: str, seed: int, indices: range
) -> tuple[list[Tensor], list[tuple[str, ...]]]:
    canvas = (form.width, form.height)
    scenes = [draw_scene(seed, i, canvas=canvas, num_frames=form.num_frames) for i in indices]
    frames, waves = _targets(encoders, form, scenes)
    ends = [frames[:, :, :1], frames[:, :, -1:]]
    made = [
        encoders.video_rows(frames),
        encoders.audio_rows(waves),
        torch.cat([encoders.video_rows(end, sampled=True) for end in ends], dim=1),
        waves.new_zeros(len(scenes), 0, 32),
        *encoders.seen(ends),
    ]
    return made, [_captions(scene, i) for scene, i in zip(scenes, indices, strict=True)]


def _captions(scene: Scene, index: int) -> tuple[str, ...]:
    said = [caption(scene, variant, index) for variant in range(CAPTIONS_OF_A_SCENE - 1)]
    return (*said, caption(scene, plain=True))


def _references(
    encoders: Encoders, form: Format, task: str, seed: int, indices: range
) -> tuple[list[Tensor], list[tuple[str, ...]]]:
    canvas = (form.width, form.height)
    drawn = [
        draw_reference(seed, index, _REFERENCES[task], canvas, form.num_frames) for index in indices
    ]
    frames, waves = _targets(encoders, form, [each.target for each in drawn])
    shown, heard, seen = _reference_media(encoders, form, task, drawn)
    sound = waves.new_zeros(len(drawn), 0, 32) if heard is None else encoders.audio_rows(heard)
    made = [
        encoders.video_rows(frames),
        encoders.audio_rows(waves),
        encoders.video_rows(shown, sampled=True),
        sound,
        *encoders.seen(seen),
    ]
    return made, [(each.prompt,) for each in drawn]


def _reference_media(
    encoders: Encoders, form: Format, task: str, drawn: list[Reference]
) -> tuple[Tensor, Tensor | None, list[Tensor]]:
    """Reference frames, waves, and the pictures or pairs of frames that the text encoder sees."""
    sources = [each.source for each in drawn]
    assert all(sources)
    tensors = to_tensors([source for source in sources if source]).to(encoders.device)
    length = CLIP_FRAMES if task == CLIP else 1
    shown = render_frames(tensors, form.width, form.height, length)
    if task == PICTURE:
        return shown, None, [shown]
    if task == VOICE:
        waves = torch.stack([reference_sound(each) for each in drawn])
        return shown, waves.to(encoders.device), [shown]
    samples = audio_samples_from_latents(audio_latents_from_frames(CLIP_FRAMES))
    heard = render_sound(tensors, form.width, form.height, samples)
    every = shown[:, :, ::PRESENTED_FRAME_STEP]
    if every.shape[2] % VISION_PAIR_FRAMES:
        every = torch.cat((every, every[:, :, -1:]), dim=2)
    return shown, heard, list(torch.split(every, VISION_PAIR_FRAMES, dim=2))
