"""The audio VAE's decoder over the loaded module's weights, several times faster on a CPU.

An alias-free activation is: twice the rate through a 12-tap filter, SnakeBeta, half the rate
through a 12-tap filter. The library module runs both filters as depthwise convolutions, which CPU
convolution code is slow at, and the first one mostly multiplies stuffed zeros. Here each filter is
its two phases of six taps, as shifted multiply-adds over whole rows; weight norm is folded once.
Source: model sheet section 4.2 (BigVGAN, snake in log scale, stored 12-tap filters).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_TAPS = 12
_HALF = _TAPS // 2
_PAD = 5  # rows that the first filter reaches past each end


class AliasFreeSnake:
    """One alias-free SnakeBeta activation, [B, C, L] -> [B, C, L].

    Args:
        module: the library's activation, whose parameters and filters are read once.
    """

    def __init__(self, module: Any) -> None:
        up, down = module.upsample, module.downsample.lowpass
        shapes = (up.filter.numel(), up.ratio, down.filter.numel(), down.stride)
        if shapes != (_TAPS, 2, _TAPS, 2):
            raise ValueError(f"activation filters {shapes} are not legal; legal: 12 taps, ratio 2")
        # The factor 2 keeps the level when zeros are stuffed between the samples.
        up_taps = [2.0 * tap for tap in up.filter.flatten().tolist()]
        down_taps = down.filter.flatten().tolist()
        self._up_even, self._up_odd = up_taps[::-1][0::2], up_taps[::-1][1::2]
        self._down_even, self._down_odd = down_taps[1::2], down_taps[0::2]
        self._frequency = torch.exp(module.act.alpha)[None, :, None, None]
        self._magnitude = (torch.exp(module.act.beta) + 1e-9).reciprocal()[None, :, None, None]

    def __call__(self, hidden: Tensor) -> Tensor:
        """Apply it; the input is left as it is."""
        length = hidden.shape[-1]
        padded = F.pad(hidden, (_PAD, _PAD), mode="replicate")
        # The doubled signal as its even and odd samples, each a plane of its own.
        doubled = hidden.new_empty((*hidden.shape[:2], 2, length))
        _filter(padded, self._up_even, 2, doubled[:, :, 0])
        _filter(padded, self._up_odd, 3, doubled[:, :, 1])
        snake = torch.sin(doubled * self._frequency).square_().mul_(self._magnitude)
        doubled = snake.add_(doubled)
        even, odd = doubled[:, :, 0], doubled[:, :, 1]
        first, last = even[..., :1], odd[..., -1:]
        even = torch.cat((first.expand(-1, -1, 2), even, last.expand(-1, -1, 3)), dim=-1)
        odd = torch.cat((first.expand(-1, -1, 3), odd, last.expand(-1, -1, 2)), dim=-1)
        halved = torch.empty_like(hidden)
        _filter(even, self._down_even, 0, halved)
        for tap, weight in enumerate(self._down_odd):
            halved.add_(odd[..., tap : tap + length], alpha=weight)
        return halved


def _filter(signal: Tensor, taps: list[float], start: int, out: Tensor) -> None:
    """Write six shifted multiply-adds of `signal` [B, C, >= start + L + 5] into `out` [B, C, L]."""
    length = out.shape[-1]
    torch.mul(signal[..., start : start + length], taps[0], out=out)
    for tap in range(1, _HALF):
        out.add_(signal[..., start + tap : start + tap + length], alpha=taps[tap])


class _AmpBlock:
    """One residual block: pairs of a dilated and a plain convolution behind activations."""

    def __init__(self, module: Any) -> None:
        self._pairs = [
            (AliasFreeSnake(first), conv1, AliasFreeSnake(second), conv2)
            for first, conv1, second, conv2 in zip(
                module.activations[::2],
                module.convs1,
                module.activations[1::2],
                module.convs2,
                strict=True,
            )
        ]

    def __call__(self, hidden: Tensor) -> Tensor:
        for first, conv1, second, conv2 in self._pairs:
            hidden = conv2(second(conv1(first(hidden)))) + hidden
        return hidden


class BigVGANDecoder:
    """Denormalised latents [B, C, A] -> waveform [B, 1, 800 A] within [-1, 1].

    Args:
        module: the loaded library VAE; its weight norm is folded in place.
    """

    def __init__(self, module: Any) -> None:
        decoder = module.decoder
        for part in decoder.modules():
            if isinstance(part, nn.Conv1d | nn.ConvTranspose1d) and hasattr(part, "weight_g"):
                nn.utils.remove_weight_norm(part).requires_grad_(False)
        self._dec_in_proj, self._conv_pre = module.dec_in_proj, decoder.conv_pre
        self._ups = [up[0] for up in decoder.ups]
        blocks = [_AmpBlock(block) for block in decoder.resblocks]
        count = decoder.num_kernels
        self._blocks = [blocks[i : i + count] for i in range(0, len(blocks), count)]
        self._activation_post = AliasFreeSnake(decoder.activation_post)
        self._conv_post = decoder.conv_post

    def __call__(self, latents: Tensor) -> Tensor:
        """Decode."""
        hidden = self._conv_pre(self._dec_in_proj(latents))
        for up, blocks in zip(self._ups, self._blocks, strict=True):
            hidden = up(hidden)
            total = blocks[0](hidden)
            for block in blocks[1:]:
                total = total + block(hidden)
            hidden = total / len(blocks)
        wave: Tensor = self._conv_post(self._activation_post(hidden))
        return wave.clamp_(-1.0, 1.0)
