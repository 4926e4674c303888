"""Audio latents to a 32 kHz stereo waveform, always in fp32, and numbers that show a broken one."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minimax_h3.core.constants import AUDIO_CHANNELS
from minimax_h3.core.errors import H3Error
from minimax_h3.vae.bigvgan import BigVGANDecoder

Wave: TypeAlias = NDArray[np.float32]


class AudioDecoder:
    """The mono audio VAE's decoder; the two channels of a stereo sound are two batch items."""

    def __init__(
        self,
        module: Any,
        latents_mean: Sequence[float],
        latents_std: Sequence[float],
        device: torch.device | str = "cpu",
    ) -> None:
        """Take a loaded VAE.

        Args:
            module: `AutoencoderKLMiniMaxH3Audio` on `device`, every parameter fp32; its weight norm
                is folded in place.
            latents_mean: per latent channel, from the checkpoint's config.
            latents_std: likewise.
            device: where to decode.

        Raises:
            ValueError: statistics of a wrong length, or a module that is not fp32; bf16 decodes
                come out about 20 dB too quiet.
        """
        halved = [name for name, value in module.named_parameters() if value.dtype != torch.float32]
        if halved:
            raise ValueError(f"audio VAE: parameter {halved[0]} is not fp32; legal: fp32 only")
        self._decode = BigVGANDecoder(module)
        self._device = torch.device(device)
        self._channels = int(module.dec_in_proj.in_channels)
        self._mean = self._statistics("latents_mean", latents_mean)
        self._std = self._statistics("latents_std", latents_std)

    def _statistics(self, name: str, values: Sequence[float]) -> Tensor:
        if len(values) != self._channels:
            raise ValueError(f"{name}: {len(values)} values are not legal; legal: {self._channels}")
        return torch.tensor(values, dtype=torch.float32, device=self._device).view(-1, 1)

    def decode(self, latents: Tensor | NDArray[np.float32]) -> Wave:
        """Decode a stereo sound.

        Args:
            latents: normalised fp32 [2, C, A], left and right.

        Returns:
            fp32 [2, 800 A] within [-1, 1], 32 kHz.

        Raises:
            ValueError: latents of a wrong shape.
            H3Error: the waveform is not finite.

        Source: model sheet section 4.2.
        """
        given = torch.as_tensor(latents)
        if given.ndim != 3 or given.shape[:2] != (AUDIO_CHANNELS, self._channels):
            raise ValueError(
                f"latents: shape {tuple(given.shape)} is not legal; legal: "
                f"[{AUDIO_CHANNELS}, {self._channels}, A]"
            )
        denormalised = given.to(self._device, torch.float32) * self._std + self._mean
        # TF32 convolutions are on by default on a GPU and would not be fp32.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            wave = self._run(denormalised)
        # The decoder's clamp keeps NaN, so a broken decode is still seen behind it.
        if not np.isfinite(wave).all():
            raise H3Error("audio decoder: the waveform is not finite")
        return wave

    def _run(self, latents: Tensor) -> Wave:
        """Decode [2, C, A]; on a CPU the two channels run at the same time.

        The decoder's small operations keep one core each busy; torch's own threads would spend
        their time waiting for one another, and spin on cores that the video decoder needs.
        """
        if self._device.type != "cpu":
            return self._run_items(latents)
        with ThreadPoolExecutor(AUDIO_CHANNELS) as pool:
            return np.concatenate(
                list(pool.map(self._run_items, torch.tensor_split(latents, AUDIO_CHANNELS)))
            )

    @torch.inference_mode()
    def _run_items(self, latents: Tensor) -> Wave:
        wave: Wave = self._decode(latents)[:, 0].cpu().numpy()
        return wave


def sanity(wave: Wave) -> dict[str, float]:
    """Numbers that tell a sound from silence and from distortion.

    Args:
        wave: fp32 [2, samples] within [-1, 1].

    Returns:
        Over all samples of both channels: `rms`, root mean square; `peak`, largest magnitude;
        `clipped_share`, share of samples at full scale. All 0 to 1, all 0 for an empty wave.
    """
    magnitude = np.abs(wave.astype(np.float64))
    if magnitude.size == 0:
        return {"rms": 0.0, "peak": 0.0, "clipped_share": 0.0}
    return {
        "rms": float(np.sqrt(np.mean(magnitude**2))),
        "peak": float(magnitude.max()),
        "clipped_share": float(np.mean(magnitude >= 1.0)),
    }
