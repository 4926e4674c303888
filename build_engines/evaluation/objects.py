"""Finds the ground and the coloured objects of a clip, and where each object is in every frame."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from build_engines.train_tiny import vocabulary as words

Frames: TypeAlias = NDArray[np.uint8]
Array: TypeAlias = NDArray[np.float32]
Mask: TypeAlias = NDArray[np.bool_]

_MAX_OBJECTS = 2
_SAMPLED_FRAMES = 36
_MIN_CORE_PIXELS = 10  # pixels of one colour whose neighbours all have it
_MIN_FRAME_CORE = 4  # of these in one frame, or the object is not there
_BLEND_LEVELS = 45.0  # a colour this close to a mix of ground and object is the object's edge
_NOISE_SHARE = 0.1  # smaller coverage is codec noise
_VISIBLE_SHARE = 0.08  # of the usual area; smaller means that the object is not there
_MIN_AREA = 12.0
_PALETTE = np.array(words.COLOUR_VALUES, dtype=np.float32)


@dataclass(slots=True)
class Track:
    """One object over time; x, y and area hold a value per frame.

    Attributes:
        colour: its name.
        rgb: measured, in levels.
        cover: share of each pixel that it covers, fp32 [F, H, W].
        area: pixels covered.
        x: centre of the covered area, pixels from the left; NaN where it is not visible.
        y: likewise from the top.
        visible: whether it is there.
    """

    colour: str
    rgb: Array
    cover: Array
    area: Array
    x: Array
    y: Array
    visible: Mask


def find_objects(frames: Frames) -> tuple[str, list[Track]]:
    """Segment a clip by colour.

    Args:
        frames: RGB [F, H, W, 3]; one frame is a picture.

    Returns:
        The ground's colour name and at most two objects, the left one first.
    """
    step = max(1, len(frames) // _SAMPLED_FRAMES)
    sample = frames[::step].astype(np.float32)
    labels = _nearest_colours(sample)
    ground = int(np.bincount(labels.ravel(), minlength=len(_PALETTE)).argmax())
    ground_rgb = np.median(sample[labels == ground][::7], axis=0)
    colours = _object_colours(sample, labels, ground, ground_rgb)
    covers = _unmix(frames, ground_rgb, colours)
    tracks = [
        _track(words.COLOUR_NAMES[index], rgb, cover)
        for (index, rgb), cover in zip(colours, covers, strict=True)
    ]
    tracks = [track for track in tracks if track.visible.any()]
    return words.COLOUR_NAMES[ground], sorted(tracks, key=lambda track: np.nanmean(track.x))


def _nearest_colours(pixels: Array) -> NDArray[np.intp]:
    distances = (_PALETTE**2).sum(-1) - 2 * (pixels @ _PALETTE.T)
    return distances.argmin(-1)


def _object_colours(
    sample: Array, labels: NDArray[np.intp], ground: int, ground_rgb: Array
) -> list[tuple[int, Array]]:
    """Index and measured RGB of the colours that objects have, the largest object first."""
    found: list[tuple[float, int, Array]] = []
    for index in range(len(_PALETTE)):
        core = _core(labels == index)
        usual = float(np.quantile(core.sum((1, 2)), 0.9))
        if index != ground and usual >= _MIN_CORE_PIXELS:
            found.append((usual, index, np.median(sample[core], axis=0)))
    kept: list[tuple[int, Array]] = []
    for _, index, rgb in sorted(found, key=lambda item: -item[0]):
        if all(_off_line(rgb, ground_rgb, other) > _BLEND_LEVELS for _, other in kept):
            kept.append((index, rgb))
    return kept[:_MAX_OBJECTS]


def _core(mask: Mask) -> Mask:
    """Pixels whose eight neighbours are in the mask too."""
    for axis in (1, 2):
        inner = mask.copy()
        inner &= np.roll(mask, 1, axis)
        inner &= np.roll(mask, -1, axis)
        mask = inner
    return mask


def _off_line(rgb: Array, first: Array, second: Array) -> float:
    """Distance of a colour from the mixes of two others."""
    way = second - first
    share = float(np.clip((rgb - first) @ way / (way @ way), 0, 1))
    return float(np.linalg.norm(rgb - first - share * way))


def _unmix(frames: Frames, ground_rgb: Array, colours: list[tuple[int, Array]]) -> list[Array]:
    """Coverage of every pixel by each object."""
    pixels = frames.astype(np.float32) - ground_rgb
    covers: list[Array] = []
    for _, rgb in colours:
        way = rgb - ground_rgb
        cover = np.clip(pixels @ way / (way @ way), 0, 1).astype(np.float32)
        cover[cover < _NOISE_SHARE] = 0
        covers.append(cover)
    if len(colours) > 1:
        # The edge of one object can look like the other one, so place decides, not colour.
        labels = _nearest_colours(frames.astype(np.float32))
        distances = np.stack([_distances(_core(labels == index)) for index, _ in colours])
        nearest = distances.argmin(0)
        for place, cover in enumerate(covers):
            cover[(nearest != place) | ~np.isfinite(distances[place])] = 0
    return covers


def _distances(core: Mask) -> Array:
    """Distance of every pixel from the middle of a core, in radii of the core; [F, H, W].

    It is infinite in frames without the core.
    """
    count = core.sum((1, 2)).astype(np.float32)
    rows = np.arange(core.shape[1], dtype=np.float32)
    columns = np.arange(core.shape[2], dtype=np.float32)
    safe = np.maximum(count, 1)
    middle_y = (core.sum(2) @ rows / safe)[:, None, None]
    middle_x = (core.sum(1) @ columns / safe)[:, None, None]
    away = np.hypot(rows[:, None] - middle_y, columns - middle_x)
    away /= np.sqrt(safe / np.pi)[:, None, None]
    away[count < _MIN_FRAME_CORE] = np.inf
    return away.astype(np.float32)


def _track(colour: str, rgb: Array, cover: Array) -> Track:
    area = cover.sum((1, 2))
    threshold = max(_MIN_AREA, _VISIBLE_SHARE * float(np.quantile(area, 0.95)))
    visible = area > threshold
    total = np.where(visible, area, np.nan)
    rows = np.arange(cover.shape[1], dtype=np.float32) + 0.5
    columns = np.arange(cover.shape[2], dtype=np.float32) + 0.5
    y = (cover.sum(2) @ rows) / total
    x = (cover.sum(1) @ columns) / total
    return Track(colour, rgb, cover, area, x, y, visible)
