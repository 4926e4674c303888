"""Frames against polygons filled point by point."""

import math

import numpy as np
import pytest
import torch

from build_engines.train_tiny import vocabulary as words
from build_engines.train_tiny.picture import coverage, render_frames, shape_distances
from build_engines.train_tiny.scenes import draw_scene, to_tensors

RADIUS = 20.0


def corners(shape: str) -> list[tuple[float, float]]:
    """Corners of a shape of radius 1; y points down."""

    def ring(count: int, radius: float, first: float, shift: float = 0.0):
        turns = [first + 2 * math.pi * i / count for i in range(count)]
        return [(radius * math.sin(t), shift - radius * math.cos(t)) for t in turns]

    if shape == "circle":
        return ring(200, 1.0, 0)
    if shape == "square":
        return [(-0.886, -0.886), (0.886, -0.886), (0.886, 0.886), (-0.886, 0.886)]
    if shape == "triangle":
        return ring(3, 1.3, 0, 0.325)
    if shape == "star":
        tips, notches = ring(5, 1.2, 0), ring(5, 0.52, math.pi / 5)
        return [point for pair in zip(tips, notches, strict=True) for point in pair]
    long, wide = 1.05, 0.36
    quarter = [(wide, -long), (wide, -wide), (long, -wide)]
    turned = [quarter]
    for _ in range(3):
        turned.append([(-y, x) for x, y in turned[-1]])
    return [point for part in turned for point in part]


def filled(points: list[tuple[float, float]], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Even-odd rule."""
    inside = np.zeros(x.shape, dtype=bool)
    for (x0, y0), (x1, y1) in zip(points, points[1:] + points[:1], strict=True):
        crosses = (y0 > y) != (y1 > y)
        if y0 != y1:
            inside ^= crosses & (x < (x1 - x0) * (y - y0) / (y1 - y0) + x0)
    return inside


@pytest.mark.parametrize("index", range(len(words.SHAPES)))
def test_shapes_are_the_polygons(index: int) -> None:
    axis = (np.arange(-30, 30, 0.25) + 0.125).astype(np.float32)
    x, y = np.meshgrid(axis, axis)
    polygon = [(RADIUS * px, RADIUS * py) for px, py in corners(words.SHAPES[index])]
    expected = filled(polygon, x, y)
    distance = shape_distances(torch.from_numpy(x), torch.from_numpy(y), torch.tensor(RADIUS))
    found = (distance[..., index] < 0).numpy()
    assert (found != expected).mean() < 0.002
    # The soft edge covers what the hard one does.
    area = float(coverage(distance[..., index]).sum())
    assert area == pytest.approx(expected.sum(), rel=0.03)


def test_a_window_is_a_part_of_the_clip() -> None:
    scene = draw_scene(2, 1, canvas=(64, 64), num_frames=40)
    whole = render_frames(to_tensors([scene]), 64, 64, 40)
    part = render_frames(to_tensors([scene], [10 / 24]), 64, 64, 12)
    assert torch.allclose(whole[:, :, 10:22], part, atol=1e-3)
    assert whole.min() >= 0
    assert whole.max() <= 1


def test_the_hidden_half_of_a_blink_is_plain_ground() -> None:
    scene = next(
        scene
        for scene in (draw_scene(2, i, canvas=(64, 64), num_objects=1) for i in range(50))
        if scene.objects[0].motion == words.BLINK
    )
    frames = render_frames(to_tensors([scene]), 64, 64, 48)[0]
    ground = torch.tensor(scene.ground_rgb)[:, None, None, None]
    dark = (frames == ground).all(0).all(1).all(1)
    assert 10 < int(dark.sum()) < 35
