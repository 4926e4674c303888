"""Frames, latents, rows, samples and seconds: pure integer functions.

Source: model sheet sections 1.4 and 4.1, pipeline sheet section 0. `F` pixel frames are valid when
`F = 17 n + 5`, which is `T = 5 n + 2` latent frames.
"""

from minimax_h3.core.constants import (
    AUDIO_CHANNELS,
    AUDIO_HOP_SAMPLES,
    AUDIO_LATENTS_PER_SECOND,
    CANVAS_MULTIPLE,
    VAE_CLIP_FRAMES,
    VAE_CLIP_LATENTS,
    VAE_TAIL_FRAMES,
    VAE_TAIL_LATENTS,
    VIDEO_FPS,
)


def align_frames_up(frames: int) -> int:
    """Smallest valid frame count `17 n + 5` (n >= 0) that is not below `frames`."""
    clips = max(0, -(-(frames - VAE_TAIL_FRAMES) // VAE_CLIP_FRAMES))
    return VAE_CLIP_FRAMES * clips + VAE_TAIL_FRAMES


def frames_from_seconds(seconds: float) -> int:
    """Aligned frame count of a requested duration; 5.0 s -> 120 -> 124 frames."""
    return align_frames_up(round(seconds * VIDEO_FPS))


def latents_from_frames(frames: int) -> int:
    """Latent frames `T = 5 (F - 5) / 17 + 2` of an aligned frame count."""
    clips, rest = divmod(frames - VAE_TAIL_FRAMES, VAE_CLIP_FRAMES)
    if rest or clips < 0:
        raise ValueError(f"frames must be 17 n + 5, got {frames}")
    return VAE_CLIP_LATENTS * clips + VAE_TAIL_LATENTS


def frames_from_latents(latents: int) -> int:
    """Inverse of `latents_from_frames`."""
    clips, rest = divmod(latents - VAE_TAIL_LATENTS, VAE_CLIP_LATENTS)
    if rest or clips < 0:
        raise ValueError(f"latent frames must be 5 n + 2, got {latents}")
    return VAE_CLIP_FRAMES * clips + VAE_TAIL_FRAMES


def audio_latents_from_frames(frames: int) -> int:
    """Audio latents per channel, `round(F / 24 * 40)` with Python's half-even rounding."""
    return round(frames / VIDEO_FPS * AUDIO_LATENTS_PER_SECOND)


def audio_samples_from_latents(audio_latents: int) -> int:
    """32 kHz samples per channel."""
    return audio_latents * AUDIO_HOP_SAMPLES


def rows_per_frame(width: int, height: int) -> int:
    """Packed rows of one latent frame on a canvas in pixels."""
    return (width // CANVAS_MULTIPLE) * (height // CANVAS_MULTIPLE)


def video_rows(width: int, height: int, frames: int) -> int:
    """Packed rows of the whole target video."""
    return latents_from_frames(frames) * rows_per_frame(width, height)


def audio_rows(frames: int) -> int:
    """Packed rows of the target sound, both channels."""
    return AUDIO_CHANNELS * audio_latents_from_frames(frames)


def media_seconds(frames: int) -> float:
    """Length of the finished file: the longer of picture and sound, in seconds."""
    return max(frames / VIDEO_FPS, audio_latents_from_frames(frames) / AUDIO_LATENTS_PER_SECOND)
