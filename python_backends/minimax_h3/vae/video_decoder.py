"""Latents to RGB frames, clip by clip: 17 frames leave as soon as nothing can change them."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minimax_h3.core.constants import VAE_CLIP_FRAMES
from minimax_h3.core.errors import H3Error
from minimax_h3.vae.outgoing import DecodedClip, Frames, Outgoing, Sender
from minimax_h3.vae.pixels import interleaved, planar_yuv420, to_rgb8
from minimax_h3.vae.temporal import KEPT_FRAMES, OWN_FRAMES, ClipPlan, cross_fade, plan_clips
from minimax_h3.vae.tiling import RELEASED_TILES, AxisTiles, TileRule, axis_tiles, stitch


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which pictures of each clip to make."""

    rgb: bool = True
    yuv: bool = False


class VideoDecoder:
    """The video VAE's decoder under our own tiling and clip streaming.

    The modules stay those of diffusers; memory holds one clip, whatever the length of the video.
    On a GPU a clip is copied to the host and consumed there while the next one is decoded.
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
        clips_ahead: int | None = None,
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
            clips_ahead: clips that are started before a finished one is handed over; 1 on a GPU,
                where starting is not waiting, and 0 on a CPU.

        Raises:
            ValueError: statistics whose length is not the number of latent channels.
        """
        self._post_quant_conv = module.post_quant_conv
        self._decoder = module.decoder
        self.modules = (module.post_quant_conv, module.decoder)
        """All that has weights."""
        self._channels = int(module.post_quant_conv.in_channels)
        self._step = int(module.decoder.patch_size)
        self._device = torch.device(device)
        self._tiles = tiles
        self._tiles_per_batch = tiles_per_batch
        on_gpu = self._device.type == "cuda"
        self._ahead = int(on_gpu) if clips_ahead is None else clips_ahead
        self._sender = Sender(self._device)
        self._mean = self._statistics("latents_mean", latents_mean)
        self._std = self._statistics("latents_std", latents_std)

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
        return _rgb_only(self.decode(latents, Wanted(rgb=True)))

    def decode(
        self, latents: Tensor | NDArray[np.float32], wanted: Wanted
    ) -> Iterator[DecodedClip]:
        """Decode a video one clip at a time, to the pictures that are wanted.

        Args:
            latents: as `decode_clips`.
            wanted: RGB, planar 4:2:0, or both from the same 8-bit values.

        Returns:
            As `decode_clips`.

        Raises:
            ValueError, H3Error: as `decode_clips`.
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
        return self._stream(given, plan, (rows, columns), wanted)

    def _stream(
        self, latents: Tensor, plan: ClipPlan, grid: tuple[AxisTiles, AxisTiles], wanted: Wanted
    ) -> Iterator[DecodedClip]:
        # No inference mode around the loop: a generator would leak it into its consumer.
        kept: Tensor | None = None
        under_way: deque[Outgoing] = deque()
        for clip in range(plan.num_clips):
            indices = [min(index, plan.latents - 1) for index in plan.window(clip)]
            is_last = clip == plan.num_clips - 1
            own, kept = self._decode_clip(latents[:, indices], grid, kept)
            count = plan.num_frames - clip * VAE_CLIP_FRAMES
            under_way.append(self._send([own, kept] if is_last else [own], count, wanted))
            del own
            while len(under_way) > (0 if is_last else self._ahead):
                done = clip + 1 - len(under_way)
                pictures, is_finite = under_way.popleft().result()
                if not is_finite:
                    raise H3Error(f"video decoder: clip {done} of {plan.num_clips} is not finite")
                yield pictures
                del pictures  # or they would live on while the next clip is decoded

    @torch.inference_mode()
    def _decode_clip(
        self, window: Tensor, grid: tuple[AxisTiles, AxisTiles], kept: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """One window of 7 latents: its finished frames, and the raw ones kept for the next clip."""
        latents = window.to(self._device, torch.float32) * self._std + self._mean
        clip = stitch(self._decode_tiles(latents, *grid), *grid)
        # A view would keep the whole clip alive until the next one is done.
        return cross_fade(kept, clip[:, OWN_FRAMES]), clip[:, KEPT_FRAMES].clone()

    @torch.inference_mode()
    def _send(self, parts: Sequence[Tensor], count: int, wanted: Wanted) -> Outgoing:
        """Round at most `count` frames of the parts, convert them and begin to copy them."""
        is_finite = torch.stack([torch.isfinite(part).all() for part in parts]).all()
        rgb = torch.cat([to_rgb8(part) for part in parts], dim=1)[:, :count]
        return self._sender.send(
            interleaved(rgb) if wanted.rgb else None,
            planar_yuv420(rgb) if wanted.yuv else None,
            is_finite,
        )

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


def _rgb_only(clips: Iterator[DecodedClip]) -> Iterator[Frames]:
    for clip in clips:
        assert clip.rgb is not None
        yield clip.rgb
        del clip  # as in `_stream`
