"""Small pictures, sounds and clips, encoded: what a client of fl2va and ref2va sends."""

import io
import wave
from fractions import Fraction

import av
import numpy as np
from PIL import Image

RATE_HZ = 32_000
FPS = 24


def pixels(width: int, height: int, seed: int, shift: int = 0) -> np.ndarray:
    """Smooth colours with a little noise; uint8 [H, W, 3]."""
    y, x = np.mgrid[0:height, 0:width] + shift
    waves = [np.sin(x / (9 + seed) + c) + np.cos(y / (13 + seed) - c) for c in range(3)]
    noise = np.random.default_rng(seed).normal(0, 6, (height, width, 3))
    return np.clip(128 + 55 * np.stack(waves, axis=-1) + noise, 0, 255).astype(np.uint8)


def picture(width: int, height: int, seed: int = 0) -> bytes:
    """A PNG."""
    return encoded(Image.fromarray(pixels(width, height, seed)))


def encoded(image: Image.Image) -> bytes:
    """A PNG of an image."""
    sink = io.BytesIO()
    image.save(sink, "PNG")
    return sink.getvalue()


def tones(seconds: float, seed: int = 0) -> np.ndarray:
    """Two different channels; int16 [2, samples] at 32 kHz."""
    time = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    hertz = (220 + 30 * seed, 331 + 30 * seed)
    return (9000 * np.stack([np.sin(2 * np.pi * hz * time + hz) for hz in hertz])).astype(np.int16)


def sound(seconds: float, seed: int = 0) -> bytes:
    """A 16-bit WAV at 32 kHz, which nothing has to resample."""
    sink = io.BytesIO()
    with wave.open(sink, "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(RATE_HZ)
        file.writeframes(tones(seconds, seed).T.tobytes())
    return sink.getvalue()


def clip(
    width: int, height: int, frames: int, *, with_sound: bool, seed: int = 0, fps: int = FPS
) -> bytes:
    """A moving H.264 clip in MP4, with AAC at 32 kHz when it has sound."""
    sink = io.BytesIO()
    with av.open(sink, "w", format="mp4") as container:
        video = container.add_stream("libx264", rate=fps, options={"crf": "12"})
        video.width, video.height, video.pix_fmt = width, height, "yuv420p"
        audio = container.add_stream("aac", rate=RATE_HZ, layout="stereo") if with_sound else None
        for index in range(frames):
            picture_ = av.VideoFrame.from_ndarray(pixels(width, height, seed, 2 * index))
            container.mux(video.encode(picture_))
        container.mux(video.encode(None))
        if audio is not None:
            _mux_sound(container, audio, tones(frames / fps, seed))
    return sink.getvalue()


def _mux_sound(container, stream, samples: np.ndarray) -> None:
    waveform = samples.astype(np.float32) / 32768
    for begin in range(0, waveform.shape[1], 1024):
        block = np.ascontiguousarray(waveform[:, begin : begin + 1024])
        frame = av.AudioFrame.from_ndarray(block, format="fltp", layout="stereo")
        frame.sample_rate, frame.pts, frame.time_base = RATE_HZ, begin, Fraction(1, RATE_HZ)
        container.mux(stream.encode(frame))
    container.mux(stream.encode(None))
