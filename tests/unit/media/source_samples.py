"""Encoded files as clients send them, made by Pillow and PyAV alone."""

import io
from dataclasses import dataclass
from fractions import Fraction

import av
import numpy as np
from media_samples import stereo_wave
from PIL import Image


def picture(width: int = 64, height: int = 48, *, seed: int = 0, channels: int = 3) -> Image.Image:
    """Smooth colours with some noise; mode RGB, RGBA or L by the channel count."""
    generator = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    planes = [(x * (3 + c) + y * (2 + c)) % 256 for c in range(channels)]
    pixels = np.stack(planes, axis=-1) + generator.integers(0, 9, (height, width, channels))
    pixels = pixels.clip(0, 255).astype(np.uint8)
    return Image.fromarray(pixels[..., 0] if channels == 1 else pixels)


def encoded(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    """An image file."""
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def oriented(image: Image.Image, orientation: int, form: str = "JPEG") -> bytes:
    """An image file with an EXIF orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image, form, exif=exif)


@dataclass
class Clip:
    """How `video` makes a file; each frame shows its number as bars, see `number`.

    Attributes:
        times: seconds at which the frames are shown; None is `frames` at `fps`.
        turn: degrees of the display matrix.
        sound: wave of the soundtrack, fp32 [channels, samples], or None.
    """

    frames: int = 60
    fps: Fraction | int = 24
    width: int = 96
    height: int = 64
    form: str = "mp4"
    codec: str = "libx264"
    times: list[float] | None = None
    turn: int = 0
    pixel_ratio: Fraction | None = None
    sound: np.ndarray | None = None
    sound_codec: str = "aac"
    sound_rate: int = 32_000
    layout: str = "stereo"
    sound_delay: int = 0
    fragmented: bool = False

    def pictures(self) -> np.ndarray:
        """The frames before they are encoded."""
        return np.stack([_bars(n, self.height, self.width) for n in range(self.frames)])


def _bars(number: int, height: int, width: int) -> np.ndarray:
    """Twelve bars, white for each set bit."""
    bits = np.array([number >> bit & 1 for bit in range(12)], np.uint8)
    row = np.repeat(bits * 255, -(-width // 12))[:width]
    return np.broadcast_to(row[None, :, None], (height, width, 3)).copy()


def number(frame: np.ndarray) -> int:
    """The number that a frame of a clip shows, at any size."""
    middle = frame[frame.shape[0] // 2].mean(axis=-1)
    places = (np.arange(12) * 2 + 1) * len(middle) // 24
    return sum(1 << bit for bit, level in enumerate(middle[places]) if level > 127)


def video(clip: Clip) -> bytes:
    """Write a clip."""
    file = io.BytesIO()
    options = {"movflags": "frag_keyframe+empty_moov"} if clip.fragmented else {}
    with av.open(file, "w", format=clip.form, options=options) as container:
        stream = container.add_stream(clip.codec, rate=clip.fps)
        stream.width, stream.height, stream.pix_fmt = clip.width, clip.height, "yuv420p"
        if clip.pixel_ratio is not None:
            stream.codec_context.sample_aspect_ratio = clip.pixel_ratio
        if clip.turn:
            stream.set_display_rotation(clip.turn)
        sound = None
        if clip.sound is not None:
            sound = container.add_stream(clip.sound_codec, rate=clip.sound_rate, layout=clip.layout)
        clock = Fraction(1, 12_000) if clip.times else 1 / Fraction(clip.fps)
        stream.codec_context.time_base = clock
        for index, pixels in enumerate(clip.pictures()):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = round(clip.times[index] / clock) if clip.times else index
            frame.time_base = clock
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if sound is not None:
            _write_sound(container, sound, clip.sound, clip)
    return file.getvalue()


def sound_file(
    wave: np.ndarray, form: str, codec: str, rate: int = 32_000, layout: str = "stereo"
) -> bytes:
    """A sound file: `wav`, `mp3`, `adts` or `ipod` (AAC in MP4)."""
    file = io.BytesIO()
    with av.open(file, "w", format=form) as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        _write_sound(container, stream, wave, Clip(sound_rate=rate, layout=layout))
    return file.getvalue()


def wav(seconds: float = 3.0, rate: int = 32_000, layout: str = "stereo") -> bytes:
    """16-bit PCM."""
    wave = tones(seconds, rate, 1 if layout == "mono" else 2)
    return sound_file(wave, "wav", "pcm_s16le", rate, layout)


def tones(seconds: float, rate: int = 32_000, channels: int = 2) -> np.ndarray:
    """Tones; fp32 [channels, seconds * rate]."""
    wave = stereo_wave(round(seconds * rate))
    return np.concatenate([wave] * 4)[:channels]


def _write_sound(container, stream, wave: np.ndarray, clip: Clip) -> None:
    stream.time_base = Fraction(1, clip.sound_rate)
    formats = {f.name for f in stream.codec_context.codec.audio_formats or []}
    form = "fltp" if not formats or "fltp" in formats else sorted(formats)[0]
    convert = av.AudioResampler(format=form, layout=clip.layout, rate=clip.sound_rate)
    size = stream.codec_context.frame_size or 1024
    for start in range(0, wave.shape[1], size):
        part = np.ascontiguousarray(wave[:, start : start + size])
        frame = av.AudioFrame.from_ndarray(part, format="fltp", layout=clip.layout)
        frame.sample_rate = clip.sound_rate
        frame.pts = start + clip.sound_delay
        frame.time_base = Fraction(1, clip.sound_rate)
        for ready in convert.resample(frame):
            container.mux(stream.encode(ready))
    container.mux(stream.encode(None))
