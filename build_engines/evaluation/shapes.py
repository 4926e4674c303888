"""Which shape an object has and how large it is: the best fit among the shapes that exist."""

from functools import cache

import numpy as np
import torch

from build_engines.evaluation.objects import Array, Track
from build_engines.train_tiny import vocabulary as words
from build_engines.train_tiny.picture import coverage, shape_distances

_FRAMES = 8  # frames that vote
_MARGIN = 4


def fit_shape(track: Track) -> tuple[str, float]:
    """Compare an object with each shape of its area and place.

    Returns:
        The shape's name, and its radius in pixels over the frames that were looked at.
    """
    frames = np.flatnonzero(track.visible)
    large = frames[track.area[frames] >= np.median(track.area[frames])]
    chosen = large[np.linspace(0, len(large) - 1, min(_FRAMES, len(large))).astype(int)]
    misses = np.sum([_misses(track, int(frame)) for frame in chosen], axis=0)
    best = int(misses.argmin())
    return words.SHAPES[best], float(np.median(radii(track, words.SHAPES[best])[track.visible]))


def radii(track: Track, shape: str) -> Array:
    """Radius in every frame, in pixels, of an object that is known to have a shape."""
    area, _, _ = _unit_shapes()[words.SHAPES.index(shape)]
    return np.sqrt(track.area / area)


def size_word(radius: float, height: int) -> str:
    """The word for a radius on a canvas of a height, both in pixels."""
    scaled = radius * words.REFERENCE_HEIGHT / height
    limits = [
        (low[1] + high[0]) / 2
        for low, high in zip(words.SIZE_RADII[:-1], words.SIZE_RADII[1:], strict=True)
    ]
    return words.SIZES[int(np.searchsorted(limits, scaled))]


def _misses(track: Track, frame: int) -> Array:
    """Mean squared difference of the object in one frame to each shape."""
    cover = track.cover[frame]
    rows, columns = np.nonzero(cover)
    top, left = max(rows.min() - _MARGIN, 0), max(columns.min() - _MARGIN, 0)
    cut = cover[top : rows.max() + _MARGIN + 1, left : columns.max() + _MARGIN + 1]
    dy = torch.arange(cut.shape[0], dtype=torch.float32)[:, None] + 0.5 + float(top)
    dx = torch.arange(cut.shape[1], dtype=torch.float32)[None] + 0.5 + float(left)
    misses = []
    for index, (area, shift_x, shift_y) in enumerate(_unit_shapes()):
        radius = float(np.sqrt(track.area[frame] / area))
        centre_x = float(track.x[frame]) - radius * shift_x
        centre_y = float(track.y[frame]) - radius * shift_y
        distance = shape_distances(
            (dx - centre_x).expand(cut.shape), (dy - centre_y).expand(cut.shape),
            torch.tensor(radius),
        )[..., index]  # fmt: skip
        misses.append(float(((coverage(distance).numpy() - cut) ** 2).sum()) / track.area[frame])
    return np.array(misses, dtype=np.float32)


@cache
def _unit_shapes() -> list[tuple[float, float, float]]:
    """Area and centre of area of each shape of radius 1."""
    radius, reach = 60.0, 90
    axis = torch.arange(-reach, reach + 1, dtype=torch.float32)
    dy, dx = torch.meshgrid(axis, axis, indexing="ij")
    covers = coverage(shape_distances(dx, dy, torch.tensor(radius)))
    units = []
    for index in range(len(words.SHAPES)):
        cover = covers[..., index]
        area = float(cover.sum())
        shift_x, shift_y = float((cover * dx).sum() / area), float((cover * dy).sum() / area)
        units.append((area / radius**2, shift_x / radius, shift_y / radius))
    return units
