"""Prepared pictures and frames -> the patches that the text encoder's vision tower reads. No torch.

A patch crosses processes as the bytes of one frame; the text encoder normalises it and puts the two
frames of a pair together. Source: model sheet section 5.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from minimax_h3.core.constants import (
    CANVAS_MULTIPLE,
    VISION_MERGE,
    VISION_PAIR_FRAMES,
    VISION_PATCH_PIXELS,
    VISION_PATCH_WIDTH,
)
from minimax_h3.core.errors import H3Error
from minimax_h3.text.presentation import Block
from minimax_h3.text.vision_rules import RESAMPLING

Pixels: TypeAlias = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class VisionTensors:
    """What `preprocess` sends to the text encoder.

    Attributes:
        pixel_values: uint8 [rows, 768], all pictures, then all videos; the two frames of a pair lie
            next to each other.
        image_grid: int64 [pictures, 3], patches (1, h, w) of each.
        video_grid: int64 [videos, 3], patches (pairs, h, w) of each.
    """

    pixel_values: Pixels
    image_grid: NDArray[np.int64]
    video_grid: NDArray[np.int64]


def pack_pixels(blocks: Sequence[Block], frames: Iterable[Pixels]) -> VisionTensors:
    """Cut the pixels of a presentation into patches.

    Args:
        blocks: the presentation's blocks, from `text.presentation.blocks_of`.
        frames: one item per block that has a picture, in the order of the blocks: uint8 [H, W, 3]
            of a picture, uint8 [n, H, W, 3] of the frames that a video presents. It is read item by
            item, so a generator holds one of them at a time.

    Raises:
        H3Error: an item's frames or sides are not those of its block, or one is missing.
    """
    seen = [block for block in blocks if block.sampled_frames]
    starts, total = _row_starts(seen)
    rows = np.empty((total, VISION_PATCH_WIDTH), dtype=np.uint8)
    items = iter(frames)
    for index, (block, start) in enumerate(zip(seen, starts, strict=True)):
        item = next(items, None)
        if item is None:
            raise H3Error(f"presentation: {index} items of pixels for {len(seen)} blocks")
        _fill(rows[start : start + block.rows], block, item)
        del item  # or it would live on while the next one is decoded
    return VisionTensors(
        rows,
        _grid_array([block.grid for block in seen if not block.is_video]),
        _grid_array([block.grid for block in seen if block.is_video]),
    )


def _row_starts(blocks: Sequence[Block]) -> tuple[list[int], int]:
    """First row of each block when all pictures come before all videos, and the number of rows."""
    starts = [0] * len(blocks)
    total = 0
    for wanted in (False, True):
        for index, block in enumerate(blocks):
            if block.is_video is wanted:
                starts[index] = total
                total += block.rows
    return starts, total


def _grid_array(grids: list[tuple[int, int, int]]) -> NDArray[np.int64]:
    return np.array(grids, dtype=np.int64).reshape(-1, 3)


def _fill(rows: Pixels, block: Block, item: Pixels) -> None:
    """Write the patches of one block; a pair's second frame may be the first one again."""
    frames = item if block.is_video else item[None]
    shape = (block.sampled_frames, block.height, block.width, 3)
    if frames.shape != shape:
        raise H3Error(f"presentation: pixels of shape {frames.shape} for a block of {shape}")
    pairs, high, wide = block.grid
    held = VISION_PAIR_FRAMES if block.is_video else 1
    target = rows.reshape(pairs, high * wide, held, VISION_PATCH_WIDTH)
    width, height = wide * VISION_PATCH_PIXELS, high * VISION_PATCH_PIXELS
    for slot in range(pairs * held):
        frame = frames[min(slot, len(frames) - 1)]
        _cut(_resized(frame, width, height), target[slot // held, :, slot % held])


def _resized(frame: Pixels, width: int, height: int) -> Pixels:
    if frame.shape[:2] == (height, width):
        return frame
    picture = Image.fromarray(np.ascontiguousarray(frame))
    return np.asarray(picture.resize((width, height), RESAMPLING))


def _cut(frame: Pixels, rows: Pixels) -> None:
    """[H, W, 3] -> [patches, 3 * 16 * 16]: 2 x 2 neighbours together, channel slowest in a row.

    Pixels go straight to their rows: a second copy of a large picture costs its page faults.
    """
    step, merge = VISION_PATCH_PIXELS, VISION_MERGE
    high, wide = frame.shape[0] // CANVAS_MULTIPLE, frame.shape[1] // CANVAS_MULTIPLE
    cells = frame.reshape(high, merge, step, wide, merge, step, 3)
    target = rows.view()
    target.shape = (high, wide, merge, merge, 3, step, step)  # a view, or an error
    target[...] = cells.transpose(0, 3, 1, 4, 6, 2, 5)
