"""Figures of trained autoencoders as they are served: through the ordinary checkpoint loaders."""

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from build_engines.autoencoders import audio_autoencoder, video_autoencoder
from build_engines.evaluation.quality import psnr
from build_engines.tiny_checkpoint import write_tiny
from build_engines.train_tiny import vocabulary as words
from build_engines.train_tiny.audio_learner import compare_sounds
from build_engines.train_tiny.batches import held_out_scenes
from build_engines.train_tiny.sample import Clip, render_clip
from minimax_h3.core.constants import PIXEL_MEAN, PIXEL_STD, VAE_CLIP_FRAMES, VAE_TAIL_FRAMES
from minimax_h3.vae.loading import load_audio_vae, load_video_vae
from minimax_h3.weights.key_maps import KeyMap, unchanged, video_vae_keys
from minimax_h3.weights.loader import load_weights
from minimax_h3.weights.manifest import CheckpointManifest, identify
from minimax_h3.weights.vae_config import Arguments, audio_vae_arguments, video_vae_arguments

NUM_FRAMES = 124
_PARTITION = "FL2VA"
_CPU = torch.device("cpu")
_Result = TypeVar("_Result")


def report(checkpoint: Path, num_clips: int, num_frames: int = NUM_FRAMES) -> dict[str, object]:
    """Encode and decode held-out clips on the CPU.

    Args:
        checkpoint: folder with `video_vae/` and `audio_vae/`.
        num_clips: held-out clips of each canvas.
        num_frames: length of the clips.

    Returns:
        For each canvas the PSNR of all frames, of frames at joints of clips and of those inside,
        in dB; the figures of the sound; seconds of an encode and a decode; bytes of the weights.

    Raises:
        CheckpointError: the loaders refuse the autoencoders.
    """
    with tempfile.TemporaryDirectory() as scratch:
        manifest = with_autoencoders(checkpoint, Path(scratch))
        video, audio = VideoRoundTrip(manifest), AudioRoundTrip(manifest)
        figures: dict[str, object] = {}
        for canvas in words.CANVASES:
            scenes = held_out_scenes(num_clips, canvas, num_frames)
            clips = [render_clip(scene) for scene in scenes]
            figures[f"{canvas[0]}x{canvas[1]}"] = _clip_figures(clips, video, audio)
        parts = ("video_vae", "audio_vae")
        figures["bytes"] = {name: _size(checkpoint / name) for name in parts}
    return figures


def with_autoencoders(checkpoint: Path, scratch: Path) -> CheckpointManifest:
    """A whole checkpoint in `scratch`: these autoencoders, all else tiny and random."""
    root = write_tiny(scratch, 0, _PARTITION)
    for part in ("video_vae", "audio_vae"):
        shutil.rmtree(root / part)
        shutil.copytree(checkpoint / part, root / part)
    return identify(root, "fl2va")


class VideoRoundTrip:
    """Frames to normalised latents and back."""

    def __init__(self, manifest: CheckpointManifest) -> None:
        """Load both halves."""
        arguments = video_vae_arguments(manifest)
        self._module = _load(
            video_autoencoder(arguments), manifest, "video_vae", video_vae_keys(manifest)
        )
        self._mean, self._std = (_statistic(arguments, name, 3) for name in ("mean", "std"))
        self._decoder = load_video_vae(manifest, _CPU, torch.float32)
        self.seconds: list[tuple[float, float]] = []

    @torch.inference_mode()
    def __call__(self, frames: Any) -> Any:
        """Encode and decode uint8 RGB [F, H, W, 3]."""
        pixels = torch.from_numpy(frames).permute(3, 0, 1, 2).float() / 255
        mean, std = (torch.tensor(x).view(-1, 1, 1, 1) for x in (PIXEL_MEAN, PIXEL_STD))
        encoded, encode_s = _timed(
            lambda: self._module.encode(((pixels - mean) / std)[None]).latent_dist.mode()[0]
        )
        latents = (encoded - self._mean) / self._std
        decoded, decode_s = _timed(lambda: np.concatenate([*self._decoder.decode_clips(latents)]))
        self.seconds.append((encode_s, decode_s))
        return decoded


class AudioRoundTrip:
    """A waveform to normalised latents and back."""

    def __init__(self, manifest: CheckpointManifest) -> None:
        """Load both halves."""
        arguments = audio_vae_arguments(manifest)
        self._module = _load(audio_autoencoder(arguments), manifest, "audio_vae", unchanged())
        self._mean, self._std = (_statistic(arguments, name, 1) for name in ("mean", "std"))
        self._decoder = load_audio_vae(manifest, _CPU)
        self.seconds: list[tuple[float, float]] = []

    @torch.inference_mode()
    def __call__(self, wave: Any) -> Any:
        """Encode and decode fp32 [2, samples]."""
        encoded, encode_s = _timed(
            lambda: self._module.encode(torch.from_numpy(wave)[:, None]).latent_dist.mode()
        )
        latents = (encoded - self._mean) / self._std
        decoded, decode_s = _timed(lambda: self._decoder.decode(latents))
        self.seconds.append((encode_s, decode_s))
        return decoded


def _load(module: Any, manifest: CheckpointManifest, component: str, keys: KeyMap) -> Any:
    files = manifest.weights[component]
    load_weights(module, files, keys, device=_CPU, dtype_of=lambda name: torch.float32)
    return module


def _statistic(arguments: Arguments, name: str, trailing: int) -> Tensor:
    values = torch.tensor(arguments[f"latents_{name}"])
    return values.view(-1, *[1] * trailing)


def _timed(work: Callable[[], _Result]) -> tuple[_Result, float]:
    began = time.perf_counter()
    result = work()
    return result, time.perf_counter() - began


def _clip_figures(
    clips: list[Clip], video: VideoRoundTrip, audio: AudioRoundTrip
) -> dict[str, object]:
    whole, joints, inside, sounds = [], [], [], []
    for frames, wave in clips:
        decoded = video(frames)
        numbers = np.arange(len(frames))
        joint = (numbers % VAE_CLIP_FRAMES < VAE_TAIL_FRAMES) & (numbers >= VAE_CLIP_FRAMES)
        whole.append(psnr(decoded, frames))
        joints.append(psnr(decoded[joint], frames[joint]))
        inside.append(psnr(decoded[~joint], frames[~joint]))
        sounds.append((audio(wave), wave))
    means = {"psnr": whole, "psnr_joints": joints, "psnr_inside": inside}
    return {
        **{name: float(np.mean(values)) for name, values in means.items()},
        "psnr_lowest": float(min(whole)),
        "sound": compare_sounds(sounds, len(clips[0][0])),
        "seconds_video": _medians(video.seconds),
        "seconds_audio": _medians(audio.seconds),
    }


def _medians(seconds: list[tuple[float, float]]) -> dict[str, float]:
    encode, decode = np.median(seconds, axis=0)
    return {"encode": float(encode), "decode": float(decode)}


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
