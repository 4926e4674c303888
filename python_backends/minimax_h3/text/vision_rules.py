"""How large the vision tower sees pictures and frames: the limits of a checkpoint's processor.

Source: model sheet section 5.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from minimax_h3.core.constants import (
    CANVAS_MULTIPLE,
    VISION_MERGE,
    VISION_PAIR_FRAMES,
    VISION_PATCH_PIXELS,
)
from minimax_h3.core.errors import CheckpointError
from minimax_h3.weights.safetensors_files import read_json

RESAMPLING = Image.Resampling.BICUBIC
_ONE_FILE = "processor_config.json"
_PICTURES = ("preprocessor_config.json", "image_processor")
_VIDEOS = ("video_preprocessor_config.json", "video_processor")
# What the release states, and what the code here does; an absent key leaves it standing.
_FIXED: Mapping[str, object] = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "merge_size": VISION_MERGE,
    "patch_size": VISION_PATCH_PIXELS,
    "rescale_factor": 1 / 255,
    "resample": int(RESAMPLING),
    "temporal_patch_size": VISION_PAIR_FRAMES,
    "cap_pixels_per_frame": None,
}


@dataclass(frozen=True, slots=True)
class VisionRules:
    """How large the vision tower may see things; stated by the checkpoint's processor.

    Attributes:
        picture_pixels: smallest and largest area of a picture.
        video_pixels: smallest and largest area times frames of a video.
    """

    picture_pixels: tuple[int, int]
    video_pixels: tuple[int, int]

    def picture_size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height in pixels that a picture is shown at; sides stay multiples of 32."""
        return _fitted(width, height, 1, 1, self.picture_pixels)

    def video_size(self, frames: int, width: int, height: int) -> tuple[int, int]:
        """Width and height that each of `frames` sampled frames is shown at.

        The limit is checked for an even number of frames, rounded half to even, and the scale taken
        for the given one: the stock processor's rule, 31 frames of 1344x768 become 1184x672.
        """
        even = round(frames / VISION_PAIR_FRAMES) * VISION_PAIR_FRAMES
        return _fitted(width, height, even, frames, self.video_pixels)


def load_vision_rules(folder: Path) -> VisionRules:
    """Read the pixel limits of a checkpoint's processor.

    Args:
        folder: `processor/` of the checkpoint.

    Raises:
        CheckpointError: a file or key is missing, or states another preparation than the one that
            is implemented.
    """
    return VisionRules(_limits(folder, *_PICTURES), _limits(folder, *_VIDEOS))


def _fitted(
    width: int, height: int, counted: int, scaled: int, limits: tuple[int, int]
) -> tuple[int, int]:
    """Scale sides so that `counted * width * height` lies within the limits.

    Args:
        width: pixels, a multiple of 32.
        height: likewise.
        counted: frames that the limit counts.
        scaled: frames that the scale is taken for.
        limits: smallest and largest number of pixels.
    """
    low, high = limits
    pixels = counted * width * height
    if low <= pixels <= high:
        return width, height
    if pixels > high:
        scale, to_multiple = math.sqrt(scaled * width * height / high), math.floor
        sides = [to_multiple(side / scale / CANVAS_MULTIPLE) for side in (width, height)]
    else:
        scale = math.sqrt(low / (scaled * width * height))
        sides = [math.ceil(side * scale / CANVAS_MULTIPLE) for side in (width, height)]
    return max(sides[0], 1) * CANVAS_MULTIPLE, max(sides[1], 1) * CANVAS_MULTIPLE


def _limits(folder: Path, name: str, section: str) -> tuple[int, int]:
    """Smallest and largest pixel count that a processor's own file, or the common one, states."""
    path = folder / name
    entries: object = None
    if path.is_file():
        entries = read_json(path)
    elif (folder / _ONE_FILE).is_file():
        path = folder / _ONE_FILE
        entries = read_json(path).get(section)
    if not isinstance(entries, Mapping):
        raise CheckpointError(f"{folder / name}: missing, and so is {section} of {_ONE_FILE}")
    for key, legal in _FIXED.items():
        if not _equal(entries.get(key, legal), legal):
            raise CheckpointError(
                f"{path}: {section} {key} {entries[key]!r} is not legal; legal: {legal!r}"
            )
    size = entries.get("size")
    limits = (
        [size.get(key) for key in ("shortest_edge", "longest_edge")]
        if isinstance(size, Mapping)
        else []
    )
    match limits:
        case [int(low), int(high)] if 0 < low < high:
            return low, high
    raise CheckpointError(
        f"{path}: {section} size {size!r} is not legal; legal: shortest_edge below longest_edge, "
        "both counts of pixels"
    )


def _equal(value: object, legal: object) -> bool:
    if isinstance(legal, float) and isinstance(value, int | float):
        return math.isclose(value, legal, rel_tol=1e-6)
    return value == legal
