"""Frames of scenes: five shapes as distance functions, with edges two pixels soft."""

import math

import torch
from torch import Tensor

from build_engines.train_tiny.motion import motion_state
from build_engines.train_tiny.scenes import SceneTensors
from minimax_h3.core.constants import VIDEO_FPS

_SQUARE = 0.886  # half side with the area of the circle
_TRIANGLE = 1.3  # circumradius; moved down so that its box is centred
_TRIANGLE_SHIFT = 0.325
_STAR_TIP, _STAR_NOTCH = 1.2, 0.52
_CROSS_LONG, _CROSS_WIDE = 1.05, 0.36


def shape_distances(dx: Tensor, dy: Tensor, radius: Tensor) -> Tensor:
    """Signed distance to each shape's edge, in pixels, negative inside; stacked along a last axis.

    Args:
        dx: pixels right of the centre.
        dy: pixels below the centre.
        radius: pixels, broadcastable to both.
    """
    ax, ay = dx.abs(), dy.abs()
    length = torch.sqrt(dx * dx + dy * dy + 1e-6)
    circle = length - radius
    square = torch.maximum(ax, ay) - _SQUARE * radius
    down = dy - _TRIANGLE_SHIFT * radius
    slope = ax * (math.sqrt(3) / 2) - down / 2
    triangle = torch.maximum(slope, down) - _TRIANGLE / 2 * radius
    long, wide = _CROSS_LONG * radius, _CROSS_WIDE * radius
    cross = torch.minimum(torch.maximum(ax - wide, ay - long), torch.maximum(ax - long, ay - wide))
    return torch.stack((circle, square, triangle, _star(dx, dy, length, radius), cross), dim=-1)


def _star(dx: Tensor, dy: Tensor, length: Tensor, radius: Tensor) -> Tensor:
    """Fold the plane into half a point of the star; its edge is one line there."""
    sector = 2 * math.pi / 5
    turn = torch.atan2(dx, -dy)
    folded = (turn - sector * torch.round(turn / sector)).abs()
    along, across = length * torch.cos(folded), length * torch.sin(folded)
    notch_x = _STAR_NOTCH * math.sin(sector / 2)
    notch_y = _STAR_NOTCH * math.cos(sector / 2)
    norm = math.hypot(notch_x, _STAR_TIP - notch_y)
    normal_x, normal_y = (_STAR_TIP - notch_y) / norm, notch_x / norm
    return across * normal_x + (along - _STAR_TIP * radius) * normal_y


def coverage(distance: Tensor) -> Tensor:
    """Share of a pixel that a shape covers: a ramp of two pixels across the edge."""
    return (0.5 - distance / 2).clamp(0, 1)


def render_frames(scenes: SceneTensors, width: int, height: int, num_frames: int) -> Tensor:
    """Frames at 24 a second, from each scene's `first_s` on.

    Returns:
        fp32 RGB in [0, 1], [B, 3, T, H, W], on the scenes' device.
    """
    device = scenes.ground.device
    steps = torch.arange(num_frames, device=device, dtype=torch.float32) / VIDEO_FPS
    state = motion_state(scenes, scenes.first_s[:, None] + steps)
    rows = torch.arange(height, device=device, dtype=torch.float32)[:, None] + 0.5
    columns = torch.arange(width, device=device, dtype=torch.float32) + 0.5
    frames = scenes.ground[:, :, None, None, None].expand(-1, -1, num_frames, height, width)
    for place in range(scenes.present.shape[1]):
        dx = columns - state.x[:, place, :, None, None]
        dy = rows - state.y[:, place, :, None, None]
        radius = state.radius[:, place, :, None, None]
        distances = shape_distances(dx, dy, radius)
        distance = (distances * scenes.shape[:, place, None, None, None]).sum(-1)
        cover = coverage(distance) * state.visible[:, place, :, None, None]
        colour = scenes.rgb[:, place, :, None, None, None]
        frames = frames + (colour - frames) * cover[:, None]
    return frames
