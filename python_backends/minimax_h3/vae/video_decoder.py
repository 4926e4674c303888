"""Latents to RGB frames, clip by clip: 17 frames leave as soon as nothing can change them."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minimax_h3.core.constants import PIXEL_MEAN, PIXEL_STD
from minimax_h3.core.errors import H3Error
from minimax_h3.vae.temporal import KEPT_FRAMES, OWN_FRAMES, ClipPlan, cross_fade, plan_clips
from minimax_h3.vae.tiling import RELEASED_TILES, AxisTiles, TileRule, axis_tiles, stitch

Frames: TypeAlias = NDArray[np.uint8]


class VideoDecoder:
    """The video VAE's decoder under our own tiling and clip streaming.

    The modules stay those of diffusers; memory holds one clip, whatever the length of the video.
    """

    def __init__(
        self,
        module: Any,
        latents_mean: Sequence[float],
        latents_std: Sequence[float],
        device: torch.device | str,
        *,
        tiles: TileRule = RELEASED_TILES,
        tiles_per_batch: int = 1,
    ) -> None:
        """Take a loaded VAE.

        Args:
            module: `AutoencoderKLMiniMaxH3` on `device`; only `post_quant_conv` and `decoder` are
                used.
            latents_mean: per latent channel, from the checkpoint's config.
            latents_std: likewise.
            device: where to decode.
            tiles: tile rule; only tests pass another than the released one.
            tiles_per_batch: tiles that go through the ViT together. More than one changes the last
                bits of a matrix product, and saves launches on a GPU.

        Raises:
            ValueError: statistics whose length is not the number of latent channels.
        """
        self._post_quant_conv = module.post_quant_conv
        self._decoder = module.decoder
        self._channels = int(module.post_quant_conv.in_channels)
        self._step = int(module.decoder.patch_size)
        self._device = torch.device(device)
        self._tiles = tiles
        self._tiles_per_batch = tiles_per_batch
        self._mean = self._statistics("latents_mean", latents_mean)
        self._std = self._statistics("latents_std", latents_std)
        self._pixel_mean = _pixel_constant(PIXEL_MEAN, self._device)
        self._pixel_std = _pixel_constant(PIXEL_STD, self._device)

    def _statistics(self, name: str, values: Sequence[float]) -> Tensor:
        if len(values) != self._channels:
            raise ValueError(f"{name}: {len(values)} values are not legal; legal: {self._channels}")
        return torch.tensor(values, dtype=torch.float32, device=self._device).view(-1, 1, 1, 1)

    def decode_clips(self, latents: Tensor | NDArray[np.float32]) -> Iterator[Frames]:
        """Decode a video one clip at a time.

        The iterator may be dropped at any point; decodes share no state. A chunk belongs to the
        caller, who may write into it.

        Args:
            latents: normalised fp32 [C, T, h, w] on any device, T of 3 or more (`5 n + 2` in
                service).

        Returns:
            An iterator of contiguous uint8 RGB [k, H, W, 3], H and W 16 times h and w: one chunk a
            clip, 17 frames each, and 5 more in the last. Value = round(255 * clamp(pixel, 0, 1)),
            half to even.

        Raises:
            ValueError: latents of a wrong rank, channel count or length.
            H3Error: while iterating, when a clip is not finite.

        Source: model sheet section 4.1; pipeline sheet section 2, rows 12 and 14.
        """
        given = torch.as_tensor(latents)
        if given.ndim != 4 or given.shape[0] != self._channels:
            raise ValueError(
                f"latents: shape {tuple(given.shape)} is not legal; legal: "
                f"[{self._channels}, T, h, w]"
            )
        plan = plan_clips(given.shape[1])
        rows = axis_tiles(given.shape[2] * self._step, self._step, self._tiles)
        columns = axis_tiles(given.shape[3] * self._step, self._step, self._tiles)
        return self._stream(given, plan, rows, columns)

    def _stream(
        self, latents: Tensor, plan: ClipPlan, rows: AxisTiles, columns: AxisTiles
    ) -> Iterator[Frames]:
        # No inference mode around the loop: a generator would leak it into its consumer.
        kept: Tensor | None = None
        sent = 0
        for clip in range(plan.num_clips):
            indices = [min(index, plan.latents - 1) for index in plan.window(clip)]
            is_last = clip == plan.num_clips - 1
            chunk, kept = self._decode_clip(latents[:, indices], rows, columns, kept, is_last)
            if kept is None:
                raise H3Error(f"video decoder: clip {clip} of {plan.num_clips} is not finite")
            chunk = chunk[: plan.num_frames - sent]
            sent += len(chunk)
            yield chunk
            del chunk  # or it would live on while the next clip is decoded

    @torch.inference_mode()
    def _decode_clip(
        self,
        window: Tensor,
        rows: AxisTiles,
        columns: AxisTiles,
        kept: Tensor | None,
        is_last: bool,
    ) -> tuple[Frames, Tensor | None]:
        """One window of 7 latents: its finished frames, and the raw ones kept for the next clip.

        The kept frames are None when anything is not finite.
        """
        latents = window.to(self._device, torch.float32) * self._std + self._mean
        clip = stitch(self._decode_tiles(latents, rows, columns), rows, columns)
        is_finite = bool(torch.isfinite(clip).all())
        # A view would keep the whole clip alive until the next one is done.
        tail = clip[:, KEPT_FRAMES].clone()
        own = cross_fade(kept, clip[:, OWN_FRAMES])
        frames = self._to_uint8([own, tail] if is_last else [own])
        return frames, tail if is_finite else None

    def _decode_tiles(
        self, latents: Tensor, rows: AxisTiles, columns: AxisTiles
    ) -> list[list[Tensor]]:
        """Every tile of a clip through the ViT; all of them have one shape."""
        dtype = self._post_quant_conv.weight.dtype
        windows = [
            latents[:, :, rows.latents(i, self._step), columns.latents(j, self._step)]
            for i in range(len(rows))
            for j in range(len(columns))
        ]
        decoded: list[Tensor] = []
        for first in range(0, len(windows), self._tiles_per_batch):
            batch = torch.stack(windows[first : first + self._tiles_per_batch]).to(dtype)
            decoded.extend(self._decoder(self._post_quant_conv(batch)))
        width = len(columns)
        return [decoded[i * width : (i + 1) * width] for i in range(len(rows))]

    @torch.inference_mode()
    def _to_uint8(self, parts: Sequence[Tensor]) -> Frames:
        """ImageNet-normalised fp32 [3, k, H, W] parts to one uint8 [k, H, W, 3] array."""
        converted = [
            (part * self._pixel_std + self._pixel_mean)
            .clamp_(0, 1)
            .mul_(255)
            .round_()
            .to(torch.uint8)
            .permute(1, 2, 3, 0)
            for part in parts
        ]
        return torch.cat(converted).contiguous().cpu().numpy()


def _pixel_constant(values: Sequence[float], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device).view(-1, 1, 1, 1)
