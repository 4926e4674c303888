"""Patch bytes -> the tensors that Qwen3-VL takes for its vision blocks.

Source: model sheet section 5.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minimax_h3.core.constants import (
    VISION_MERGE,
    VISION_PAIR_FRAMES,
    VISION_PATCH_PIXELS,
    VISION_PATCH_WIDTH,
)
from minimax_h3.core.errors import H3Error

Ints = NDArray[np.int64]
_MIDDLE = 127.5  # mean 0.5 and deviation 0.5 of [0, 1], in bytes


def vision_inputs(
    token_ids: Ints,
    pixel_values: NDArray[np.uint8],
    image_grid: Ints,
    video_grid: Ints,
    *,
    image_pad: int,
    video_pad: int,
    device: torch.device,
) -> Mapping[str, Tensor]:
    """Arguments of Qwen3-VL's forward for a presentation with vision blocks.

    Args:
        token_ids: int64 [L].
        pixel_values: uint8 [rows, 768] of `text.vision_pixels`.
        image_grid: int64 [pictures, 3], patches (1, h, w).
        video_grid: int64 [videos, 3], patches (pairs, h, w).
        image_pad: id of the token that stands for a feature of a picture.
        video_pad: likewise of a video.
        device: where the tensors go; the bytes travel, FP32 is made there.

    Returns:
        Tensors by the names of the forward's parameters; pixels FP32 in -1 .. 1.

    Raises:
        H3Error: rows, grids and pads contradict each other.
    """
    picture_rows = _patches(image_grid)
    video_rows = _patches(video_grid) * VISION_PAIR_FRAMES
    for name, found, expected in (
        ("rows", len(pixel_values), picture_rows + video_rows),
        ("picture pads", int((token_ids == image_pad).sum()), _features(image_grid)),
        ("video pads", int((token_ids == video_pad).sum()), _features(video_grid)),
    ):
        if found != expected:
            raise H3Error(f"vision: {found} {name} for grids that need {expected}")
    # The library's own numbering of token kinds: 0 text, 1 picture, 2 video.
    kinds = np.where(token_ids == image_pad, 1, np.where(token_ids == video_pad, 2, 0))
    inputs = {"mm_token_type_ids": torch.from_numpy(kinds)[None].to(device)}
    # The server's own memory is read-only, and torch wants to be able to write.
    rows = torch.from_numpy(np.array(pixel_values)).to(device)
    if picture_rows:
        inputs["pixel_values"] = _paired(rows[:picture_rows], 1)
        inputs["image_grid_thw"] = torch.tensor(image_grid, device=device)
    if video_rows:
        inputs["pixel_values_videos"] = _paired(rows[picture_rows:], VISION_PAIR_FRAMES)
        inputs["video_grid_thw"] = torch.tensor(video_grid, device=device)
    return inputs


def _patches(grid: Ints) -> int:
    return int(grid.prod(axis=1).sum())


def _features(grid: Ints) -> int:
    return _patches(grid) // VISION_MERGE**2


def _paired(rows: Tensor, frames: int) -> Tensor:
    """[n * frames, 768] bytes -> [n, 1536] normalised FP32; channel, frame, line, column."""
    area = VISION_PATCH_PIXELS**2
    channels = VISION_PATCH_WIDTH // area
    by_frame = rows.reshape(-1, frames, channels, area).transpose(1, 2)
    pairs = by_frame.expand(-1, -1, VISION_PAIR_FRAMES, -1)
    return pairs.float().sub_(_MIDDLE).div_(_MIDDLE).reshape(-1, VISION_PAIR_FRAMES * rows.shape[1])
