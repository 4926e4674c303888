"""A 32 kHz stereo waveform to normalised condition latents, always in fp32.

Source: model sheet section 4.2.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minimax_h3.core.constants import AUDIO_CHANNELS
from minimax_h3.core.errors import H3Error

Wave: TypeAlias = NDArray[np.float32]


class AudioEncoder:
    """The mono audio VAE's encoder; the two channels of a stereo sound are two batch items.

    The posterior's mean is the condition; nothing is sampled and nothing is rounded.
    """

    def __init__(
        self,
        module: Any,
        latents_mean: Sequence[float],
        latents_std: Sequence[float],
        device: torch.device | str = "cpu",
    ) -> None:
        """Take a loaded VAE.

        Args:
            module: `AutoencoderKLMiniMaxH3Audio` on `device`; only `encoder`, `pre_block` and
                `mean_proj` are used, all fp32.
            latents_mean: per latent channel, from the checkpoint's config.
            latents_std: likewise.
            device: where to encode.

        Raises:
            ValueError: statistics of a wrong length, or a module that is not fp32.
        """
        self._encoder, self._pre_block = module.encoder, module.pre_block
        self._mean_proj = module.mean_proj
        for part in (self._encoder, self._pre_block, self._mean_proj):
            for name, value in part.named_parameters():
                if value.dtype != torch.float32:
                    raise ValueError(f"audio VAE: {name} is {value.dtype}; legal: fp32 only")
        self._device = torch.device(device)
        self._hop_samples = int(module.hop_length)
        self._channels = int(module.mean_proj.out_channels)
        self._mean = self._statistics("latents_mean", latents_mean)
        self._std = self._statistics("latents_std", latents_std)

    def _statistics(self, name: str, values: Sequence[float]) -> Tensor:
        if len(values) != self._channels:
            raise ValueError(f"{name}: {len(values)} values are not legal; legal: {self._channels}")
        return torch.tensor(values, dtype=torch.float32).view(-1, 1)

    @torch.inference_mode()
    def encode(self, wave: Tensor | Wave) -> Tensor:
        """Encode a stereo sound.

        Args:
            wave: fp32 [2, S], 32 kHz, S of 1 or more; padded on the right to whole latents.

        Returns:
            Normalised fp32 [2, C, ceil(S / 800)] on the CPU.

        Raises:
            ValueError: a wave of a wrong shape.
            H3Error: the latents are not finite.
        """
        given = torch.as_tensor(wave)
        if given.ndim != 2 or given.shape[0] != AUDIO_CHANNELS or not given.shape[1]:
            raise ValueError(
                f"wave: shape {tuple(given.shape)} is not legal; legal: [{AUDIO_CHANNELS}, samples]"
            )
        mono = given.to(self._device, torch.float32)[:, None]
        padded = torch.nn.functional.pad(mono, (0, -mono.shape[-1] % self._hop_samples))
        # TF32 convolutions are on by default on a GPU and would not be fp32.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            hidden = self._encoder(padded)
            hidden = self._pre_block(hidden.transpose(1, 2)).transpose(1, 2)
            latents: Tensor = self._mean_proj(hidden).cpu()
        if not bool(torch.isfinite(latents).all()):
            raise H3Error("audio encoder: the latents are not finite")
        return (latents - self._mean) / self._std
