"""The alias-free activations of the audio decoder for training on a GPU, without depthwise filters.

The library doubles and halves the rate by depthwise convolutions over zero-stuffed rows, whose
backward is slow. Here every row is a batch item of one dense convolution: its two phases are two
output channels on the way up and two input channels on the way down.
Source: model sheet section 4.2 (BigVGAN, stored 12-tap filters).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_TAPS, _PAD = 12, 5


class FastActivation(nn.Module):
    """Twice the rate, SnakeBeta, half the rate; the parameters are those of the module it replaces.

    The state dictionary keeps the library's names, so weights stay exchangeable.
    """

    up_phases: Tensor
    down_phases: Tensor

    def __init__(self, module: Any) -> None:
        """Take over a library activation.

        Raises:
            ValueError: filters of another length or rate.
        """
        super().__init__()
        self.act = module.act
        self.upsample, self.downsample = module.upsample, module.downsample
        up, down = module.upsample, module.downsample.lowpass
        shapes = (up.filter.numel(), up.ratio, down.filter.numel(), down.stride)
        if shapes != (_TAPS, 2, _TAPS, 2):
            raise ValueError(f"activation filters {shapes} are not legal; legal: 12 taps, ratio 2")
        taps = 2 * up.filter.flatten().flip(0)  # 2 keeps the level when zeros are stuffed
        phases = torch.zeros(2, 1, _TAPS // 2 + 1, dtype=taps.dtype, device=taps.device)
        phases[0, 0, :-1], phases[1, 0, 1:] = taps[0::2], taps[1::2]
        pairs = down.filter.flatten().view(-1, 2).flip(1).t()[None]
        self.register_buffer("up_phases", phases, persistent=False)
        self.register_buffer("down_phases", pairs.contiguous(), persistent=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Apply it to [B, C, L]."""
        batch, channels, length = hidden.shape
        rows = F.pad(hidden, (_PAD, _PAD), mode="replicate").view(batch * channels, 1, -1)
        doubled = F.conv1d(rows[..., 2:-2], self.up_phases)  # even and odd samples, [., 2, L]
        doubled = doubled.view(batch, channels, 2, length)
        alpha, beta = (torch.exp(x)[:, None, None] for x in (self.act.alpha, self.act.beta))
        doubled = doubled + (beta + 1e-9).reciprocal() * torch.sin(alpha * doubled).square()
        even, odd = doubled.unbind(2)
        first, last = even[..., :1], odd[..., -1:]
        even = torch.cat((first.expand(-1, -1, 2), even, last.expand(-1, -1, 3)), dim=-1)
        odd = torch.cat((first.expand(-1, -1, 3), odd, last.expand(-1, -1, 2)), dim=-1)
        pairs = torch.stack((even, odd), dim=2).view(batch * channels, 2, -1)
        return F.conv1d(pairs, self.down_phases).view(batch, channels, length)


def use_fast_activations(module: Any) -> None:
    """Replace every alias-free activation of an audio autoencoder, in place."""
    decoder = module.decoder
    for block in decoder.resblocks:
        for index, activation in enumerate(block.activations):
            block.activations[index] = FastActivation(activation)
    decoder.activation_post = FastActivation(decoder.activation_post)
