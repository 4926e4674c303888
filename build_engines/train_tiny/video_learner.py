"""Training of the small video autoencoder on windows of 22 frames, the decoder's unit."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from build_engines.train_tiny import vocabulary as words
from build_engines.train_tiny.batches import held_out_scenes, training_batch
from build_engines.train_tiny.fast_encoder import encode_moments
from build_engines.train_tiny.picture import render_frames
from build_engines.train_tiny.scenes import SceneTensors, to_tensors
from build_engines.train_tiny.vae_files import kept_statistics, save_video_vae
from minimax_h3.core.constants import (
    PIXEL_MEAN,
    PIXEL_STD,
    VAE_CLIP_FRAMES,
    VAE_TAIL_FRAMES,
    VIDEO_FPS,
)
from minimax_h3.vae.temporal import KEPT_FRAMES, OWN_FRAMES

_WINDOW = VAE_CLIP_FRAMES + VAE_TAIL_FRAMES
_KL_WEIGHT = 1e-4
_ABSOLUTE_WEIGHT = 0.05
_STEEP_WEIGHT = 0.1
_OBJECT_WEIGHT = 0.1
_OBJECT_MARGIN = 3  # pixels around an object that count as its own
_STATISTICS_BATCHES = 4


class VideoLearner:
    """Learner of the video autoencoder; see `pieces.Learner`."""

    def __init__(
        self,
        module: Any,
        device: torch.device,
        *,
        seed: int = 0,
        batch: int = 16,
        held_out: int = 8,
        held_out_frames: int = 124,
        canvases: tuple[tuple[int, int], ...] = words.CANVASES,
    ) -> None:
        """Take a module.

        Args:
            module: the autoencoder, fp32; it is moved to the device.
            device: where to train; on a GPU activations are bf16.
            seed: of the data.
            batch: windows a step.
            held_out: clips of each canvas in an evaluation.
            held_out_frames: length of these clips.
            canvases: widths and heights to train on; the first gets two steps of three.
        """
        self.module = module.to(device)
        self._device = device
        self._dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._seed, self._batch, self._held_out = seed, batch, held_out
        self._held_out_frames = held_out_frames
        self._kept: tuple[list[float], list[float]] | None = None
        self._canvases = {f"{width}x{height}": (width, height) for width, height in canvases}
        self._mean = torch.tensor(PIXEL_MEAN, device=device).view(-1, 1, 1, 1)
        self._std = torch.tensor(PIXEL_STD, device=device).view(-1, 1, 1, 1)

    def keep_latents(self, folder: Path) -> None:
        """Train the decoder alone: what was trained on the latents stays right.

        Args:
            folder: the piece that is gone on from; its statistics stay.
        """
        for part in ("encoder", "quant_conv"):
            getattr(self.module, part).requires_grad_(False)
        self._kept = kept_statistics(folder)

    def kind_of(self, step: int) -> str:
        """The second canvas every third step."""
        kinds = list(self._canvases)
        return kinds[-1] if step % 3 == 2 else kinds[0]

    def draw(self, kind: str, step: int) -> SceneTensors:
        """Scenes from a random moment on."""
        canvas = self._canvases[kind]
        return training_batch(self._seed, step, self._batch, canvas, _WINDOW / VIDEO_FPS)

    def losses(self, kind: str, scenes: SceneTensors) -> dict[str, Tensor]:
        """Squared and absolute differences of pixels and of their steps, and a small KL.

        The objects of each window count once more, however small they are: a star of ten pixels is
        a hundredth of the picture, and what its shape is would never be worth a step.
        """
        with torch.no_grad():
            frames = render_frames(scenes, *self._canvases[kind], _WINDOW)
            pixels = (frames - self._mean) / self._std
        mean, log_variance = self._encode(pixels)
        latents = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        difference = self._decode(latents) - pixels
        squared = difference.square().mean()
        steep = sum(difference.diff(dim=axis).square().mean() for axis in (-1, -2))
        kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()
        total = squared + _ABSOLUTE_WEIGHT * difference.abs().mean()
        total = total + _STEEP_WEIGHT * steep + _KL_WEIGHT * kl
        total = total + _OBJECT_WEIGHT * at_objects(difference, frames, scenes.ground)
        with torch.no_grad():
            levels = (difference * self._std).square().mean()
            psnr = -10 * torch.log10(levels)
        return {"total": total, "psnr": psnr, "kl": kl}

    def _encode(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        moments = encode_moments(self.module, pixels, self._dtype)
        mean, log_variance = moments.chunk(2, dim=1)
        return mean, log_variance.clamp(-30, 20)

    def _decode(self, latents: Tensor) -> Tensor:
        """22 frames of one decoder window."""
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            decoded = self.module.decoder(self.module.post_quant_conv(latents)).float()
        return torch.cat((decoded[:, :, OWN_FRAMES], decoded[:, :, KEPT_FRAMES]), dim=2)

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """PSNR of whole held-out clips through the library's own encode and decode, in fp32."""
        figures: dict[str, float] = {}
        for name, canvas in self._canvases.items():
            inside, joints = [], []
            for scene in held_out_scenes(self._held_out, canvas, self._held_out_frames):
                errors = self._frame_errors(to_tensors([scene]).to(self._device), canvas)
                at_joint = torch.arange(len(errors)) % VAE_CLIP_FRAMES < VAE_TAIL_FRAMES
                at_joint[:VAE_TAIL_FRAMES] = False
                joints.append(errors[at_joint].mean())
                inside.append(errors[~at_joint].mean())
            figures[f"psnr_{name}"] = _decibels(torch.stack(joints + inside))
            figures[f"psnr_joints_{name}"] = _decibels(torch.stack(joints))
            figures[f"psnr_inside_{name}"] = _decibels(torch.stack(inside))
        figures["score"] = min(figures[f"psnr_{name}"] for name in self._canvases)
        return figures

    def _frame_errors(self, scenes: SceneTensors, canvas: tuple[int, int]) -> Tensor:
        """Mean squared error of every frame, pixels in [0, 1]."""
        frames = render_frames(scenes, *canvas, self._held_out_frames)
        encoded = self.module.encode((frames - self._mean) / self._std).latent_dist.mode()
        decoded = self.module.decode(encoded).sample * self._std + self._mean
        return (decoded.clamp(0, 1) - frames).square().mean((0, 1, 3, 4)).cpu()

    def save(self, folder: Path) -> None:
        """Measure the statistics of latents, unless they are kept, and write everything."""
        mean, std = self._kept or self._statistics()
        save_video_vae(self.module, mean, std, folder)

    @torch.no_grad()
    def _statistics(self) -> tuple[list[float], list[float]]:
        """Mean and deviation of each latent channel over training windows."""
        latents = []
        for step in range(_STATISTICS_BATCHES):
            kind = list(self._canvases)[step % len(self._canvases)]
            scenes = self.draw(kind, 10_000_000 + step).to(self._device)
            frames = render_frames(scenes, *self._canvases[kind], _WINDOW)
            mean, _ = self._encode((frames - self._mean) / self._std)
            latents.append(mean.transpose(0, 1).flatten(1))
        std, mean = torch.std_mean(torch.cat(latents, dim=1), dim=1)
        return mean.tolist(), std.clamp_min(1e-3).tolist()


def at_objects(difference: Tensor, frames: Tensor, ground: Tensor) -> Tensor:
    """Mean squared difference at the objects, of each clip first and then of all.

    Args:
        difference: [B, 3, T, H, W].
        frames: likewise, the pictures that are wanted.
        ground: [B, 3], the colour behind the objects.
    """
    changed = (frames - ground[:, :, None, None, None]).abs().amax(1) > 0
    size = 2 * _OBJECT_MARGIN + 1
    near = max_pool2d(changed.float(), size, stride=1, padding=_OBJECT_MARGIN)
    squared = (difference.square().mean(1) * near).sum((1, 2, 3))
    return (squared / near.sum((1, 2, 3)).clamp_min(1)).mean()


def _decibels(errors: Tensor) -> float:
    return float(-10 * torch.log10(errors.mean()))
