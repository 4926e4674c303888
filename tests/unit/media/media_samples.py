"""Synthetic moving pictures with sound, and a writer that can get every property wrong."""

import io
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from minimax_h3.core.lengths import audio_latents_from_frames, audio_samples_from_latents
from minimax_h3.media.h264 import VideoStreamEncoder
from minimax_h3.media.mp4 import mux

RATE_HZ = 32_000


def moving_clip(frames: int, height: int = 64, width: int = 64) -> np.ndarray:
    """A colour gradient that slides with every frame; uint8 [F, H, W, 3]."""
    y, x = np.mgrid[0:height, 0:width]
    shift = np.arange(frames)[:, None, None]
    red = (x * 3 + shift * 4) % 256
    green = (y * 3 - shift * 5) % 256
    blue = (x + y + shift * 7) % 256
    return np.stack([red, green, blue], axis=-1).astype(np.uint8)


def stereo_wave(samples: int, *, left_hz: float = 440, right_hz: float = 554) -> np.ndarray:
    """Two tones; fp32 [2, samples], peak 0.5."""
    seconds = np.arange(samples) / RATE_HZ
    tones = [np.sin(2 * np.pi * hz * seconds + hz) for hz in (left_hz, right_hz)]
    return (0.5 * np.stack(tones)).astype(np.float32)


@dataclass
class Recipe:
    """How `write` makes a file; the defaults give a good one of 124 frames."""

    frames: np.ndarray = field(default_factory=lambda: moving_clip(124))
    wave: np.ndarray | None = field(default_factory=lambda: stereo_wave(165_600))
    fps: int = 24
    rate_hz: int = RATE_HZ
    tagged: bool = True
    faststart: bool = True
    audio_delay_samples: int = 0
    pixel_format: str = "yuv420p"
    video_codec: str = "libx264"
    audio_codec: str = "aac"
    video_streams: int = 1


def write(recipe: Recipe, path: Path) -> bytes:
    """Write a file by a plain PyAV writer that shares nothing with the product."""
    options = {"movflags": "+faststart"} if recipe.faststart else {}
    with av.open(str(path), "w", format="mp4", options=options) as container:
        videos = [_video(container, recipe) for _ in range(recipe.video_streams)]
        audio = None
        if recipe.wave is not None:
            layout = "stereo" if len(recipe.wave) == 2 else "mono"
            audio = container.add_stream(recipe.audio_codec, rate=recipe.rate_hz, layout=layout)
        for video in videos:
            for index, pixels in enumerate(recipe.frames):
                frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
                frame = frame.reformat(format=recipe.pixel_format, dst_colorspace="ITU709")
                frame.pts, frame.time_base = index, Fraction(1, recipe.fps)
                container.mux(video.encode(frame))
            container.mux(video.encode(None))
        if audio is not None:
            _sound(container, audio, recipe)
    return path.read_bytes()


def _video(container, recipe: Recipe):
    stream = container.add_stream(recipe.video_codec, rate=recipe.fps)
    stream.height, stream.width = recipe.frames.shape[1:3]
    stream.pix_fmt = recipe.pixel_format
    if recipe.tagged:
        context = stream.codec_context
        context.color_primaries = context.color_trc = context.colorspace = context.color_range = 1
    return stream


def _sound(container, stream, recipe: Recipe) -> None:
    layout = "stereo" if len(recipe.wave) == 2 else "mono"
    for start in range(0, recipe.wave.shape[1], 1024):
        part = np.ascontiguousarray(recipe.wave[:, start : start + 1024])
        frame = av.AudioFrame.from_ndarray(part, format="fltp", layout=layout)
        frame.sample_rate = recipe.rate_hz
        frame.pts = start + recipe.audio_delay_samples
        frame.time_base = Fraction(1, recipe.rate_hz)
        container.mux(stream.encode(frame))
    container.mux(stream.encode(None))


def product_file(frames: int, height: int = 64, width: int = 64) -> bytes:
    """A file of the product's own writers, with sound of the right length."""
    encoder = VideoStreamEncoder(width, height)
    encoder.push(moving_clip(frames, height, width))
    samples = audio_samples_from_latents(audio_latents_from_frames(frames))
    return mux(encoder.finish(), stereo_wave(samples))


def first_planes(data: bytes) -> list[np.ndarray]:
    """Decoded Y, U, V planes of the first frame."""
    with av.open(io.BytesIO(data)) as container:
        frame = next(container.decode(video=0))
    flat = frame.to_ndarray()
    height, width = frame.height, frame.width
    quarter = (height // 2, width // 2)
    luma = flat[:height]
    rest = flat[height:].reshape(2, *quarter)
    return [luma, rest[0], rest[1]]
