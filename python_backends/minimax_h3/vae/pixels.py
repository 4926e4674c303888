"""Decoded values to 8-bit pictures, on the device: RGB, or what an H.264 encoder takes.

Planar pictures are half as many bytes to copy, and leave the encoder nothing to convert.
"""

import torch
from torch import Tensor

from minimax_h3.core.constants import PIXEL_MEAN, PIXEL_STD

# BT.709 luma weights, and the ranges of limited-range video. Source: ITU-R BT.709 3.2 and 4.6.
_KR, _KG, _KB = 0.2126, 0.7152, 0.0722
_LUMA_SPAN, _LUMA_FOOT = 219.0, 16.0
_CHROMA_SPAN, _CHROMA_MIDDLE = 224.0, 128.0
# Chroma rows are halved as libswscale does it on the host: by its bicubic (A = -0.6), stretched to
# eight rows. Columns are averaged in pairs.
_HALVING = (-0.0140625, -0.0421875, 0.1203125, 0.4359375)


def to_rgb8(pixels: Tensor) -> Tensor:
    """Undo the ImageNet normalisation and round.

    Args:
        pixels: fp32 [3, k, H, W], normalised.

    Returns:
        uint8 [3, k, H, W]: round(255 * clamp(value, 0, 1)), half to even.
    """
    mean, std = (_constant(values, pixels) for values in (PIXEL_MEAN, PIXEL_STD))
    return (pixels * std + mean).clamp_(0, 1).mul_(255).round_().to(torch.uint8)


def interleaved(rgb: Tensor) -> Tensor:
    """[3, k, H, W] -> contiguous [k, H, W, 3]."""
    return rgb.permute(1, 2, 3, 0).contiguous()


def planar_yuv420(rgb: Tensor) -> Tensor:
    """Convert to BT.709 limited range with 4:2:0 chroma.

    Args:
        rgb: uint8 [3, k, H, W], H and W multiples of 4.

    Returns:
        uint8 [k, 3 H / 2, W]: per frame H rows of Y, then U and V, each in H / 4 rows of W.
    """
    _, count, height, width = rgb.shape
    red, green, blue = rgb.to(torch.float32)
    luma = red * _KR + green * _KG + blue * _KB
    planes = torch.empty(count, height * 3 // 2, width, dtype=torch.uint8, device=rgb.device)
    planes[:, :height] = _rounded(luma * (_LUMA_SPAN / 255) + _LUMA_FOOT)
    quarter = height // 4
    for index, (colour, weight) in enumerate(((blue, _KB), (red, _KR))):
        chroma = _halved(colour - luma) * (_CHROMA_SPAN / 255 / (2 - 2 * weight)) + _CHROMA_MIDDLE
        start = height + index * quarter
        planes[:, start : start + quarter] = _rounded(chroma).view(count, quarter, width)
    return planes


def _halved(plane: Tensor) -> Tensor:
    """[k, H, W] -> [k, H / 2, W / 2]; rows beyond the edges repeat the last one."""
    pairs = torch.nn.functional.avg_pool2d(plane, (1, 2))
    reach = len(_HALVING) - 1
    padded = torch.nn.functional.pad(pairs[:, None], (0, 0, reach, reach), mode="replicate")
    taps = torch.tensor((*_HALVING, *reversed(_HALVING)), device=plane.device)
    return torch.nn.functional.conv2d(padded, taps.view(1, 1, -1, 1), stride=(2, 1))[:, 0]


def _rounded(values: Tensor) -> Tensor:
    return values.round_().clamp_(0, 255).to(torch.uint8)


def _constant(values: tuple[float, ...], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=like.device).view(-1, 1, 1, 1)
