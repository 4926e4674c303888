"""The time embedder: a sinusoid and a small MLP, in fp32 whatever the rest runs in."""

import math

import torch
from torch import nn
from torch.nn.functional import silu

from minimax_h3.weights.dit_config import DiTConfig

MAX_PERIOD = 10_000


class TimeEmbedder(nn.Module):
    """Times in [0, 1] to the vector that every AdaLN projection reads."""

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.freq_dim = config.freq_dim
        self.linear_1 = nn.Linear(config.freq_dim, config.time_hidden_dim, dtype=torch.float32)
        self.linear_2 = nn.Linear(config.time_hidden_dim, config.time_out_dim, dtype=torch.float32)

    def forward(self, times: torch.Tensor) -> torch.Tensor:
        """Embed distinct times.

        Args:
            times: fp32 [M], 1 is clean; not scaled.

        Returns:
            fp32 [M, time_out_dim], before the activation.
        """
        hidden: torch.Tensor = self.linear_1(sinusoid(times, self.freq_dim))
        return self.linear_2(silu(hidden))


def sinusoid(times: torch.Tensor, width: int) -> torch.Tensor:
    """`[cos, sin]` of `t * 10000 ** (-i / (width / 2))`, cosines first, fp32 [M, width].

    Source: model sheet 1.3, step 4.
    """
    half = width // 2
    steps = torch.arange(half, dtype=torch.float32, device=times.device)
    angles = times[:, None] * torch.exp(steps * (-math.log(MAX_PERIOD) / half))
    return torch.cat((angles.cos(), angles.sin()), dim=-1)
