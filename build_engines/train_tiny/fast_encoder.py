"""The video encoder's forward for training: the same numbers, a backward that is cheap on a GPU.

The library pads by reflection and by zero frames in two operations, and the first one's backward
adds with atomics. Here both are one copy, and the backward folds thin borders back. The network is
causal in time, so the last 5 frames of 22 are encoded alone instead of filled up to 17.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minimax_h3.core.constants import VAE_CLIP_FRAMES

_PAST_FRAMES = 2  # zero frames in front of every 3-tap convolution


class CausalReflectPad(torch.autograd.Function):
    """Two zero frames in front; one reflected pixel after each axis, and before it if asked."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, before: int) -> Tensor:
        """Pad [B, C, T, H, W] to [B, C, T + 2, H + before + 1, W + before + 1]."""
        ctx.before = before
        *lead, frames, height, width = values.shape
        shape = (*lead, frames + _PAST_FRAMES, height + before + 1, width + before + 1)
        padded = values.new_empty(shape)
        padded[:, :, :_PAST_FRAMES] = 0
        body = padded[:, :, _PAST_FRAMES:]
        rows, columns = slice(before, before + height), slice(before, before + width)
        body[..., rows, columns] = values
        body[..., rows, -1] = values[..., -2]
        if before:
            body[..., rows, 0] = values[..., 1]
            body[..., 0, :] = body[..., 2, :]
        body[..., -1, :] = body[..., -3, :]
        return padded

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Add what the borders received to the pixels that they reflect."""
        before = ctx.before
        body = grad[:, :, _PAST_FRAMES:]
        height, width = body.shape[-2] - before - 1, body.shape[-1] - before - 1
        rows = body[..., before : before + height, :].clone()
        rows[..., -2, :] += body[..., -1, :]
        if before:
            rows[..., 1, :] += body[..., 0, :]
        folded = rows[..., before : before + width].clone(memory_format=torch.contiguous_format)
        folded[..., -2] += rows[..., -1]
        if before:
            folded[..., 1] += rows[..., 0]
        return folded, None


def encode_moments(module: Any, pixels: Tensor, dtype: torch.dtype) -> Tensor:
    """Mean and log variance of a clip's latents.

    Args:
        module: the autoencoder; its parameters stay fp32.
        pixels: normalised fp32 [B, 3, F, H, W], 17 frames, or 22 for one decoder window.
        dtype: of activations.

    Returns:
        fp32 [B, 48, T, H / 16, W / 16], T of 5 or 7: bitwise `encode` of the library in fp32.
    """
    activations = pixels.to(dtype)
    starts = range(0, pixels.shape[2], VAE_CLIP_FRAMES)
    clips = [activations[:, :, start : start + VAE_CLIP_FRAMES] for start in starts]
    return torch.cat([_encode_clip(module, clip) for clip in clips], dim=2)


def _encode_clip(module: Any, hidden: Tensor) -> Tensor:
    encoder = module.encoder
    hidden = _conv(encoder.conv_in, hidden, 1)
    for block in encoder.down_blocks:
        for resnet in block.resnets:
            hidden = _resnet(resnet, hidden)
        for down in block.downsamplers or ():
            hidden = _conv(down.conv, hidden, 0 if down.spatial_stride == 2 else None)
    hidden = _conv(encoder.conv_out, _norm_silu(encoder.norm_out, hidden), 1)
    moments: Tensor = module.quant_conv(hidden.float())
    return moments


def _resnet(resnet: Any, hidden: Tensor) -> Tensor:
    residual = hidden
    hidden = _conv(resnet.conv1, _norm_silu(resnet.norm1, hidden), 1)
    hidden = _conv(resnet.conv2, _norm_silu(resnet.norm2, hidden), 1)
    if resnet.conv_shortcut is not None:
        residual = F.conv3d(residual, *_parameters(resnet.conv_shortcut, residual.dtype))
    return residual + hidden


def _conv(conv: Any, hidden: Tensor, before: int | None) -> Tensor:
    """A causal convolution; `before` is the padding in front of both picture axes."""
    if before is None:
        padded = F.pad(hidden, (0, 0, 0, 0, _PAST_FRAMES, 0))
    else:
        padded = CausalReflectPad.apply(hidden, before)  # type: ignore[no-untyped-call]  # torch's
    return F.conv3d(padded, *_parameters(conv, hidden.dtype), stride=conv.stride)


def _parameters(module: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return module.weight.to(dtype), module.bias.to(dtype)


def _norm_silu(norm: Any, hidden: Tensor) -> Tensor:
    """Group norm of each frame by itself, then SiLU."""
    batch, channels, frames, height, width = hidden.shape
    each = hidden.transpose(1, 2).reshape(batch * frames, channels, height, width)
    weight, bias = _parameters(norm, hidden.dtype)
    normed = F.silu(F.group_norm(each, norm.num_groups, weight, bias, norm.eps))
    return normed.view(batch, frames, channels, height, width).transpose(1, 2)
