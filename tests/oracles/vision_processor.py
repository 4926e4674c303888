"""The conditioner's processor for diffusers' blocks, without torchvision.

Pictures go through the library's own PIL processor. Its video processor exists for torchvision
alone, so frames are cut here by hand, patch by patch and as slowly as it reads; sizes that it would
resize are refused.
"""

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

PATCH, MERGE, PAIR = 16, 2, 2
PICTURE_PIXELS = {"shortest_edge": 65536, "longest_edge": 16777216}
VIDEO_PIXELS = (4096, 25165824)


class ReferenceVideoProcessor:
    """Frames at the size they have -> normalised patches of frame pairs."""

    temporal_patch_size = PAIR

    def __call__(
        self,
        videos: Sequence[NDArray[np.uint8]],
        do_sample_frames: bool = False,
        return_tensors: str = "pt",
    ) -> dict[str, torch.Tensor]:
        """As the stock video processor, for videos that need no other size."""
        assert not do_sample_frames
        assert return_tensors == "pt"
        rows, grids = [], []
        for video in videos:
            frames = [*video, *([video[-1]] * (len(video) % PAIR))]
            height, width = video.shape[1:3]
            assert VIDEO_PIXELS[0] <= len(frames) * height * width <= VIDEO_PIXELS[1]
            grids.append([len(frames) // PAIR, height // PATCH, width // PATCH])
            rows += [
                _pair(frames[first : first + PAIR], top, left)
                for first in range(0, len(frames), PAIR)
                for top, left in _merged_order(height // PATCH, width // PATCH)
            ]
        return {
            "pixel_values_videos": torch.from_numpy(np.stack(rows)),
            "video_grid_thw": torch.tensor(grids),
        }


class ReferenceProcessor:
    """What the text encoder steps ask of `Qwen3VLProcessor`."""

    def __init__(self, image_pad: int, video_pad: int) -> None:
        self._kinds = {image_pad: 1, video_pad: 2}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.image_processor = Qwen2VLImageProcessorPil(
                patch_size=PATCH,
                temporal_patch_size=PAIR,
                merge_size=MERGE,
                size=PICTURE_PIXELS,
                image_mean=[0.5] * 3,
                image_std=[0.5] * 3,
            )
        self.video_processor = ReferenceVideoProcessor()

    def create_mm_token_type_ids(self, token_ids: list[list[int]]) -> list[list[int]]:
        """0 for text, 1 for a picture's pad, 2 for a video's."""
        return [[self._kinds.get(token, 0) for token in row] for row in token_ids]


def _merged_order(high: int, wide: int) -> list[tuple[int, int]]:
    """Patches of a frame, the four that become one token next to each other."""
    return [
        (top + down, left + across)
        for top in range(0, high, MERGE)
        for left in range(0, wide, MERGE)
        for down in range(MERGE)
        for across in range(MERGE)
    ]


def _pair(frames: Sequence[NDArray[np.uint8]], top: int, left: int) -> NDArray[np.float32]:
    """One patch of two frames: channel, frame, line, column."""
    lines, columns = (slice(PATCH * first, PATCH * (first + 1)) for first in (top, left))
    cut = np.stack([frame[lines, columns] for frame in frames]).astype(np.float32)
    return ((cut - 127.5) / 127.5).transpose(3, 0, 1, 2).reshape(-1).astype(np.float32)
