"""Latents to packed rows and back: permutations only, bit-exact both ways.

Source: model sheet 1.4. A video row holds one (1, 2, 2) patch, channel slowest: value
`4 c + 2 dy + dx`; rows run frame by frame, then line by line. Audio rows are channel-major: all of
the left channel, then all of the right.
"""

import torch

from minimax_h3.core.constants import AUDIO_CHANNELS, PATCH_SIZE


def video_to_rows(latents: torch.Tensor) -> torch.Tensor:
    """Cut video latents into rows.

    Args:
        latents: [C, T, h, w] with even h and w.

    Returns:
        [T * h/2 * w/2, 4 C], contiguous.

    Raises:
        ValueError: the latents do not divide into patches.
    """
    patch_t, patch_h, patch_w = PATCH_SIZE
    channels, frames, height, width = latents.shape
    if frames % patch_t or height % patch_h or width % patch_w:
        raise ValueError(
            f"latents of {frames}x{height}x{width} cells do not divide into patches of {PATCH_SIZE}"
        )
    patches = latents.reshape(
        *(channels, frames // patch_t, patch_t),
        *(height // patch_h, patch_h, width // patch_w, patch_w),
    )
    return patches.permute(1, 3, 5, 0, 2, 4, 6).reshape(-1, channels * patch_t * patch_h * patch_w)


def rows_to_video(rows: torch.Tensor, frames: int, height: int, width: int) -> torch.Tensor:
    """Put rows back together; inverse of `video_to_rows`.

    Args:
        rows: [T * h/2 * w/2, 4 C].
        frames: latent frames, T.
        height: latent lines, h.
        width: latent columns, w.

    Returns:
        [C, T, h, w], contiguous.

    Raises:
        ValueError: the number of rows is not that of the grid.
    """
    patch_t, patch_h, patch_w = PATCH_SIZE
    grid = (frames // patch_t, height // patch_h, width // patch_w)
    if rows.shape[0] != grid[0] * grid[1] * grid[2]:
        raise ValueError(f"{rows.shape[0]} rows do not fill {frames}x{height}x{width} cells")
    patches = rows.reshape(*grid, -1, patch_t, patch_h, patch_w).permute(3, 0, 4, 1, 5, 2, 6)
    return patches.reshape(-1, frames, height, width)


def audio_to_rows(latents: torch.Tensor) -> torch.Tensor:
    """Lay stereo latents out channel-major.

    Args:
        latents: [2, C, A].

    Returns:
        [2 A, C]; rows 0 .. A - 1 are the left channel.

    Raises:
        ValueError: not stereo.
    """
    if latents.shape[0] != AUDIO_CHANNELS:
        raise ValueError(f"{latents.shape[0]} audio channels; legal: {AUDIO_CHANNELS}")
    return latents.transpose(1, 2).reshape(-1, latents.shape[1])


def rows_to_audio(rows: torch.Tensor) -> torch.Tensor:
    """Put audio rows back together; inverse of `audio_to_rows`.

    Args:
        rows: [2 A, C].

    Returns:
        [2, C, A], contiguous.

    Raises:
        ValueError: an odd number of rows.
    """
    if rows.shape[0] % AUDIO_CHANNELS:
        raise ValueError(f"{rows.shape[0]} audio rows; legal: a multiple of {AUDIO_CHANNELS}")
    return rows.reshape(AUDIO_CHANNELS, -1, rows.shape[1]).transpose(1, 2).contiguous()
