"""Pictures and videos to normalised condition latents, clip by clip, always in fp32.

Source: model sheet section 4.1, "Encoder", "Frame rule" and "Conditioning encode".
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minimax_h3.core.constants import (
    CONDITION_POSTERIOR_SEED,
    PIXEL_MEAN,
    PIXEL_STD,
    VAE_CLIP_FRAMES,
)
from minimax_h3.core.errors import H3Error
from minimax_h3.vae.tiling import RELEASED_TILES, AxisTiles, TileRule, axis_tiles, stitch
from minimax_h3.weights.vae_config import VAE_TOKEN_DROP

Frame: TypeAlias = NDArray[np.uint8]
_LOG_VARIANCE_RANGE = (-30.0, 20.0)


class VideoEncoder:
    """The video VAE's encoder under the released tiling; memory holds one clip of 17 frames.

    A condition is anchored in every step of the denoising, so its encoding is exact: fp32 without
    TF32, and a posterior that is sampled under one fixed seed, whatever the request's.
    """

    def __init__(
        self,
        module: Any,
        latents_mean: Sequence[float],
        latents_std: Sequence[float],
        device: torch.device | str,
        *,
        tiles: TileRule = RELEASED_TILES,
    ) -> None:
        """Take a loaded VAE.

        Args:
            module: `AutoencoderKLMiniMaxH3` on `device`; only `encoder` and `quant_conv` are used,
                both fp32.
            latents_mean: per latent channel, from the checkpoint's config.
            latents_std: likewise.
            device: where to encode.
            tiles: tile rule; only tests pass another than the released one.

        Raises:
            ValueError: statistics of a wrong length, or a module that is not fp32.
        """
        for part in (module.encoder, module.quant_conv):
            for name, value in part.named_parameters():
                if value.dtype != torch.float32:
                    raise ValueError(f"video VAE: {name} is {value.dtype}; legal: fp32 only")
        self._encoder, self._quant_conv = module.encoder, module.quant_conv
        self._channels = int(module.quant_conv.out_channels) // 2
        self._step = int(module.spatial_compression_ratio)
        self._device = torch.device(device)
        self._tiles = tiles
        self._mean = self._statistics("latents_mean", latents_mean)
        self._std = self._statistics("latents_std", latents_std)
        self._pixel_mean, self._pixel_std = (
            torch.tensor(values, device=self._device).view(1, -1, 1, 1, 1)
            for values in (PIXEL_MEAN, PIXEL_STD)
        )

    def _statistics(self, name: str, values: Sequence[float]) -> Tensor:
        if len(values) != self._channels:
            raise ValueError(f"{name}: {len(values)} values are not legal; legal: {self._channels}")
        return torch.tensor(values, dtype=torch.float32).view(-1, 1, 1, 1)

    def encode(self, frames: Iterable[Frame]) -> Tensor:
        """Encode a picture or a video at once; see `encode_clips` and `sample`."""
        return self.sample(list(self.encode_clips(frames)))

    def encode_clips(self, frames: Iterable[Frame]) -> Iterator[Tensor]:
        """Encode frames as they come.

        Args:
            frames: uint8 RGB [H, W, 3] each, sides multiples of 16: one of a picture, `17 n + 5` of
                a video. An array [F, H, W, 3] is such an iterable too.

        Returns:
            An iterator of posterior moments, fp32 [2 C, t, h, w] on the CPU: one item with t of 1
            for a picture, which goes through the encoder without any repetition; else one per 17
            frames with t of 5, the last clip filled up with copies of the last frame.

        Raises:
            ValueError: while iterating, for no frames or frames of different sizes.
            H3Error: while iterating, when moments are not finite.
        """
        source = iter(frames)
        clip = list(islice(source, VAE_CLIP_FRAMES))
        if not clip:
            raise ValueError("a condition has at least one frame")
        shape = clip[0].shape
        rows, columns = (axis_tiles(side, self._step, self._tiles) for side in shape[:2])
        is_picture = len(clip) == 1
        index = 0
        while clip:
            if any(frame.shape != shape for frame in clip):
                raise ValueError(f"clip {index}: frames that are not all of shape {shape}")
            if not is_picture:
                clip += [clip[-1]] * (VAE_CLIP_FRAMES - len(clip))
            moments = self._encode_clip(np.stack(clip), rows, columns)
            if not bool(torch.isfinite(moments).all()):
                raise H3Error(f"video encoder: clip {index} is not finite")
            yield moments
            clip = list(islice(source, VAE_CLIP_FRAMES))
            index += 1

    def sample(self, moments: Sequence[Tensor]) -> Tensor:
        """Draw the condition latents from the moments of all clips.

        Args:
            moments: the items of `encode_clips`, in order.

        Returns:
            Normalised fp32 [C, T, h, w] on the CPU: T of 1 for a picture, `5 n + 2` for a video.
            Every condition is drawn under a fresh CPU generator of the fixed seed, and rounded to
            fp16 before it is normalised, as the released model was conditioned.
        """
        whole = torch.cat(list(moments), dim=1)
        if whole.shape[1] > 1:
            whole = whole[:, :-VAE_TOKEN_DROP]
        mean, log_variance = whole.chunk(2)
        deviation = torch.exp(0.5 * log_variance.clamp(*_LOG_VARIANCE_RANGE))
        generator = torch.Generator().manual_seed(CONDITION_POSTERIOR_SEED)
        noise = torch.randn(mean.shape, generator=generator)
        latents = (mean + deviation * noise).half().float()
        return (latents - self._mean) / self._std

    @torch.inference_mode()
    def _encode_clip(self, clip: Frame, rows: AxisTiles, columns: AxisTiles) -> Tensor:
        """One clip [k, H, W, 3] to moments [2 C, t, h, w], tiled in pixels, blended in latents."""
        frames = torch.from_numpy(clip).to(self._device).permute(3, 0, 1, 2)[None]
        pixels = frames.float().div_(255.0).sub_(self._pixel_mean).div_(self._pixel_std)
        # TF32 convolutions are on by default on a GPU and would not be fp32.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            tiles = [
                [
                    self._encode_tile(pixels[..., rows.pixels(i), columns.pixels(j)])
                    for j in range(len(columns))
                ]
                for i in range(len(rows))
            ]
        return stitch(tiles, rows.in_latents(self._step), columns.in_latents(self._step)).cpu()

    def _encode_tile(self, pixels: Tensor) -> Tensor:
        moments: Tensor = self._quant_conv(self._encoder(pixels))
        return moments[0]
