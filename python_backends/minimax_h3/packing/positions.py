"""Rotary coordinates (t, h, w) of packed rows, in fp64 on the CPU.

Built in fp64 because fp32 sums give other angles. One unit of t is one audio latent (1/40 s), so a
pixel frame is 5/3 units and picture and sound share one clock that starts after the text.

Source: model sheet 1.5, pipeline sheet 4.2.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray

from minimax_h3.core.constants import AUDIO_CHANNELS, PATCH_SIZE

UNITS_PER_FRAME = 5.0 / 3.0  # 40 units per second at 24 frames per second
FRAMES_PER_LATENT = (1, 4, 4, 4, 4)  # repeats with every encoder clip of 17 frames
SPATIAL_SCALE = 32


def latent_units(latent_frames: int) -> NDArray[np.float64]:
    """How many time units each latent frame spans, [T]."""
    repeats = -(-latent_frames // len(FRAMES_PER_LATENT))
    frames = np.tile(np.array(FRAMES_PER_LATENT, dtype=np.float64), repeats)[:latent_frames]
    return frames * UNITS_PER_FRAME


def latent_times(latent_frames: int, origin: float) -> torch.Tensor:
    """Start time of each latent frame, [T]; summed one by one from 0, then moved to `origin`."""
    starts = np.zeros(latent_frames)
    np.cumsum(latent_units(latent_frames)[:-1], out=starts[1:])
    return torch.from_numpy(origin + starts)


def latent_span(latent_frames: int) -> float:
    """Time units that latent frames take up, summed one by one; see `last_frame_time`."""
    return float(np.cumsum(latent_units(latent_frames))[-1])


def last_frame_time(latent_frames: int, origin: float) -> float:
    """Time of the last pixel frame, where a `last` keyframe sits.

    The span is summed pairwise here (numpy's sum) and one by one in `latent_times` and
    `latent_span`, because the released model does so; from 16 latent frames on the two differ in
    the last fp64 bit.
    """
    return origin + float(latent_units(latent_frames).sum()) - UNITS_PER_FRAME


def spatial_axis(cells: int, patch: int, area: int) -> NDArray[np.float64]:
    """One axis of the spatial grid, [cells / patch], centred on 16; the right end is left out.

    Args:
        cells: latent cells along this axis.
        patch: latent cells per row along this axis.
        area: latent height times width; its root normalises both axes.
    """
    ratio = cells / math.sqrt(area)
    left = (1.0 - ratio) / 2.0
    return np.linspace(left, left + ratio, cells // patch, endpoint=False) * SPATIAL_SCALE


def width_axis(height: int, width: int) -> NDArray[np.float64]:
    """The w coordinates of a latent grid, [w / 2]; audio rows sit at its two ends."""
    return spatial_axis(width, PATCH_SIZE[2], height * width)


def frame_positions(height: int, width: int) -> torch.Tensor:
    """The (h, w) coordinates of the rows of one latent frame, [R, 2]."""
    lines = spatial_axis(height, PATCH_SIZE[1], height * width)
    columns = width_axis(height, width)
    grid = np.stack(np.meshgrid(lines, columns, indexing="ij"), axis=-1)
    return torch.from_numpy(grid.reshape(-1, 2))


def text_positions(rows: int) -> torch.Tensor:
    """Text row i sits at (i, 0, 0), [L, 3]."""
    positions = torch.zeros(rows, 3, dtype=torch.float64)
    positions[:, 0] = torch.arange(rows, dtype=torch.float64)
    return positions


def video_positions(times: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Rows of latent frames at the given times, frame by frame, [T * R, 3]."""
    grid = frame_positions(height, width)
    positions = torch.empty(times.numel(), grid.shape[0], 3, dtype=torch.float64)
    positions[:, :, 0] = times[:, None]
    positions[:, :, 1:] = grid
    return positions.reshape(-1, 3)


def audio_positions(
    audio_latents: int, origin: float, columns: NDArray[np.float64]
) -> torch.Tensor:
    """Rows of stereo sound, channel-major, [2 A, 3]; h is 0, w an end of the width axis.

    Args:
        audio_latents: per channel, A.
        origin: time of the first latent.
        columns: width axis of the grid that the sound belongs to.
    """
    positions = torch.zeros(AUDIO_CHANNELS, audio_latents, 3, dtype=torch.float64)
    positions[:, :, 0] = origin + torch.arange(audio_latents, dtype=torch.float64)
    positions[0, :, 2], positions[1, :, 2] = float(columns[0]), float(columns[-1])
    return positions.reshape(-1, 3)
