"""A transformer with random weights, made on the device: for benchmarks at the released size.

Nothing is read and nothing written. Scales are those of a trained model: branches keep the size of
the stream, a few channels of the residual stream are hundreds of times larger than the rest, and
norms damp them, because kernels and precisions that fail do so on such channels.
"""

import torch
from torch import nn

from minimax_h3.dit.adaln import is_block_projection
from minimax_h3.dit.model import FP32_MODULES, MiniMaxH3Transformer
from minimax_h3.weights.dit_config import DiTConfig
from minimax_h3.weights.loader import build_on_meta

RELEASED = DiTConfig(
    hidden_size=5376,
    num_layers=50,
    num_refiner_layers=2,
    num_heads=56,
    head_dim=128,
    ffn_dim=14_336,
    text_dim=5120,
    freq_dim=256,
    time_hidden_dim=5376,
    time_out_dim=2688,
)
"""The released sizes. Source: model sheet 1.1."""

OUTLIER = 500.0  # values that trained activations reach
OUTLIER_CHANNELS = (7, 1031, 4099)  # counted modulo the width
OUTLIER_GAIN = 30.0  # of the branches into those channels
OUTLIER_DAMPING = 0.02  # of the norms on them


class SeededProjection(nn.Module):
    """An AdaLN projection whose weights are drawn anew, always the same, whenever they are read.

    Fifty of them would take 26 GB; a table reads each of them once.
    """

    def __init__(self, inputs: int, outputs: int, seed: int, like: torch.Tensor) -> None:
        super().__init__()
        self.in_features, self.out_features = inputs, outputs
        self._seed, self._device, self._dtype = seed, like.device, like.dtype

    @property
    def weight(self) -> torch.Tensor:
        """[outputs, inputs]; modulations of about a third."""
        return self._draw(0, self.out_features, self.in_features) * (0.5 * self.in_features**-0.5)

    @property
    def bias(self) -> torch.Tensor:
        """[outputs]."""
        return self._draw(1, self.out_features) * 0.2

    def _draw(self, which: int, *shape: int) -> torch.Tensor:
        generator = torch.Generator(self._device).manual_seed(2 * self._seed + which)
        drawn = torch.empty(shape, dtype=self._dtype, device=self._device)
        return drawn.normal_(generator=generator)


def dummy_transformer(
    config: DiTConfig,
    device: torch.device,
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
    *,
    resident_adaln: bool = False,
) -> MiniMaxH3Transformer:
    """Make the transformer.

    Args:
        config: sizes, `RELEASED` or smaller.
        device: where all weights are drawn.
        dtype: of everything outside the FP32 island.
        seed: of all weights.
        resident_adaln: keep the blocks' AdaLN projections instead of drawing them when read.
    """
    model = build_on_meta(lambda: MiniMaxH3Transformer(config, dtype))
    generator = torch.Generator(device).manual_seed(seed)
    for name, parameter in list(model.named_parameters()):
        if is_block_projection(name):
            continue
        kind = torch.float32 if name.split(".")[0] in FP32_MODULES else dtype
        values = torch.empty(parameter.shape, dtype=kind, device=device)
        values.normal_(generator=generator)
        scale_(name, values, config)
        _set(model, name, values)
    like = model.text_in.weight
    for index, block in enumerate(model.blocks):
        seeded = SeededProjection(config.time_out_dim, config.adaln_dim, seed + 1 + index, like)
        if resident_adaln:
            _set(model, f"blocks.{index}.adaln.weight", seeded.weight)
            _set(model, f"blocks.{index}.adaln.bias", seeded.bias)
        else:
            block.adaln = seeded
    return model.eval().requires_grad_(False)


def outlier_channels(width: int) -> list[int]:
    """Channels of the residual stream that carry huge values."""
    return sorted({channel % width for channel in OUTLIER_CHANNELS})


def scale_(name: str, values: torch.Tensor, config: DiTConfig) -> None:
    """Turn standard normal values into weights of a sane size, in place."""
    channels = outlier_channels(config.hidden_size)
    if "norm" in name:
        values.mul_(0.2).add_(1.0)
        if values.numel() == config.hidden_size:
            values[channels] = OUTLIER_DAMPING
    elif values.ndim == 1:
        values.mul_(0.1)
        if name in ("video_in.bias", "audio_in.bias", "text_in.bias"):
            values[channels] = OUTLIER
    else:
        values.mul_(values.shape[1] ** -0.5)
        if name.endswith(("attn.out.weight", "mlp.fc2.weight")):
            values.mul_((2 * config.num_layers) ** -0.5)
            values[channels] *= OUTLIER_GAIN


def _set(model: nn.Module, name: str, values: torch.Tensor) -> None:
    owner, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(owner), leaf, nn.Parameter(values, requires_grad=False))
