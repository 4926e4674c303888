"""Facts about an MP4, gathered in one decode of bounded memory; no file makes it raise."""

import hashlib
import io
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

import av
import numpy as np
from numpy.typing import NDArray

from minimax_h3.core.constants import AUDIO_CHANNELS
from minimax_h3.media.boxes import BoxWalk, walk_boxes

Source: TypeAlias = Path | str | bytes
Image: TypeAlias = NDArray[np.uint8]

# Far above anything this product writes: a hostile file may not keep the checker busy.
_MAX_PIXELS = 8192 * 8192
_MAX_FRAMES = 100_000
_MAX_SAMPLES = 1_000_000_000
_BLOCK_PIXELS = 8
# Limited-range luma of a frame that counts as black or white throughout; H.264 adds some noise.
_BLACK_LUMA, _WHITE_LUMA = 16 + 8, 235 - 8


@dataclass(slots=True)
class VideoFacts:
    """The first video stream; times in seconds, bit rates in bits per second.

    Attributes:
        colour: primaries, transfer, matrix and range as FFmpeg numbers; BT.709 limited is all 1.
        frame_hashes: SHA-256 of every decoded frame's planes.
        luma_std: over all pixels of all frames.
        motion: largest change of the mean luma of an 8x8 block against the first frame; the noise
            that H.264 adds to a frozen picture averages out of it.
        blank_run: most frames in a row that are black or white throughout.
        first, last: RGB frames [H, W, 3].
    """

    codec: str
    profile: str
    pixel_format: str
    width: int
    height: int
    rate: Fraction | None
    start_s: float | None
    duration_s: float | None
    bit_rate: int
    colour: tuple[int, int, int, int]
    frame_hashes: list[str] = field(default_factory=list)
    luma_std: float = 0.0
    motion: float = 0.0
    blank_run: int = 0
    first: Image | None = None
    last: Image | None = None


@dataclass(slots=True)
class AudioFacts:
    """The first audio stream; levels are those of the decoded samples.

    Attributes:
        samples: decoded samples per channel.
        side: root mean square of left minus right; 0 for anything but two channels.
        sample_hash: SHA-256 of the decoded fp32 samples.
    """

    codec: str
    sample_rate_hz: int
    channels: int
    start_s: float | None
    duration_s: float | None
    bit_rate: int
    samples: int = 0
    finite: bool = True
    peak: float = 0.0
    rms: float = 0.0
    side: float = 0.0
    sample_hash: str = ""


@dataclass(slots=True)
class MediaFacts:
    """Everything the checks look at.

    Attributes:
        problem: why the file does not open, or empty.
        decode_problem: what broke while decoding, or empty.
    """

    size_bytes: int = 0
    boxes: BoxWalk = field(default_factory=lambda: BoxWalk((), "not read"))
    problem: str = ""
    decode_problem: str = ""
    container: str = ""
    duration_s: float | None = None
    bit_rate: int = 0
    num_video_streams: int = 0
    num_audio_streams: int = 0
    video: VideoFacts | None = None
    audio: AudioFacts | None = None


def probe(source: Source) -> MediaFacts:
    """Read and decode a file completely.

    Args:
        source: a path, or the bytes of a file.

    Returns:
        The facts; a file that is missing, damaged or hostile is described, never raised.
    """
    facts = MediaFacts()
    try:
        where = source if isinstance(source, bytes) else Path(source)
        facts.size_bytes = len(where) if isinstance(where, bytes) else _regular_size(where)
        if not facts.size_bytes:
            raise ValueError("the file is empty")
        facts.boxes = walk_boxes(where)
        opened = io.BytesIO(where) if isinstance(where, bytes) else str(where)
        with av.open(opened) as container:
            if "mp4" not in container.format.name.split(","):
                raise ValueError(f"it is no MP4, FFmpeg reads it as {container.format.name}")
            if not len(container.streams):
                raise ValueError("it holds neither picture nor sound")
            _describe(container, facts)
            _decode(container, facts)
    except (av.error.FFmpegError, OSError) as error:
        facts.problem = error.strerror or str(error)
    except ValueError as error:  # PyAV's own refusals, such as a path with a null byte
        facts.problem = str(error)
    return facts


def _regular_size(path: Path) -> int:
    """Bytes of a file; a pipe would be waited for without end.

    Raises:
        OSError: the file is not there.
        ValueError: it is no regular file.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is a folder" if path.is_dir() else "it is no regular file")
    return status.st_size


def _describe(container: Any, facts: MediaFacts) -> None:
    facts.container = container.format.name
    facts.duration_s = None if container.duration is None else container.duration / av.time_base
    facts.bit_rate = container.bit_rate
    facts.num_video_streams = len(container.streams.video)
    facts.num_audio_streams = len(container.streams.audio)
    for stream in _readable(container.streams.video):
        context = stream.codec_context
        facts.video = VideoFacts(
            codec=context.name,
            profile=str(context.profile),
            pixel_format=str(context.pix_fmt),
            width=context.width,
            height=context.height,
            rate=stream.average_rate,
            start_s=_seconds(stream, stream.start_time),
            duration_s=_seconds(stream, stream.duration),
            bit_rate=stream.bit_rate or 0,
            colour=(
                int(context.color_primaries),
                int(context.color_trc),
                int(context.colorspace),
                int(context.color_range),
            ),
        )
    for stream in _readable(container.streams.audio):
        context = stream.codec_context
        facts.audio = AudioFacts(
            codec=context.name,
            sample_rate_hz=context.sample_rate,
            channels=context.channels,
            start_s=_seconds(stream, stream.start_time),
            duration_s=_seconds(stream, stream.duration),
            bit_rate=stream.bit_rate or 0,
        )


def _readable(streams: Sequence[Any]) -> list[Any]:
    """The first stream, unless no decoder knows it."""
    return [stream for stream in streams[:1] if stream.codec_context is not None]


def _seconds(stream: Any, ticks: int | None) -> float | None:
    return None if ticks is None else float(ticks * stream.time_base)


def _decode(container: Any, facts: MediaFacts) -> None:
    """Decode both streams in file order; damage ends it with a `decode_problem`."""
    streams = [*_readable(container.streams.video), *_readable(container.streams.audio)]
    if not streams:
        return
    if facts.video and facts.video.width * facts.video.height > _MAX_PIXELS:
        facts.decode_problem = f"frames of more than {_MAX_PIXELS} pixels are not decoded"
        return
    pictures, sounds = _PictureMeter(facts.video), _SoundMeter(facts.audio)
    try:
        for frame in container.decode(*streams):
            meter = pictures if isinstance(frame, av.VideoFrame) else sounds
            meter.add(frame)
    except av.error.FFmpegError as error:
        facts.decode_problem = f"{type(error).__name__}: {error.strerror}"
    except _TooLongError as error:
        facts.decode_problem = str(error)
    facts.decode_problem = facts.decode_problem or pictures.damage
    pictures.close()
    sounds.close()


class _TooLongError(Exception):
    """The file holds more than the checker is willing to decode."""


class _PictureMeter:
    """Measures frames one by one; keeps two of them."""

    def __init__(self, facts: VideoFacts | None) -> None:
        self._facts = facts
        self._first_blocks: NDArray[np.float64] | None = None
        self._last: Any = None
        self.damage = ""
        self._blank = 0
        self._sum = self._squares = 0.0
        self._pixels = 0

    def add(self, frame: Any) -> None:
        """Measure one frame."""
        facts = self._facts
        assert facts is not None
        if len(facts.frame_hashes) >= _MAX_FRAMES:
            raise _TooLongError(f"more than {_MAX_FRAMES} frames")
        if frame.is_corrupt and not self.damage:
            # The decoder itself carries on, with invented pictures.
            self.damage = f"frame {len(facts.frame_hashes)} is damaged"
        planar = frame if frame.format.name == "yuv420p" else frame.reformat(format="yuv420p")
        planes = [_plane(plane) for plane in planar.planes]
        digest = hashlib.sha256()
        for plane in planes:
            digest.update(plane.tobytes())
        facts.frame_hashes.append(digest.hexdigest())
        if facts.first is None:
            facts.first = frame.to_ndarray(format="rgb24")
        self._last = frame
        self._measure(facts, planes[0])

    def _measure(self, facts: VideoFacts, luma: Image) -> None:
        blocks = _block_means(luma)
        if self._first_blocks is None:
            self._first_blocks = blocks
        elif self._first_blocks.shape == blocks.shape:
            change = float(np.abs(blocks - self._first_blocks).max())
            facts.motion = max(facts.motion, change)
        is_blank = int(luma.max()) <= _BLACK_LUMA or int(luma.min()) >= _WHITE_LUMA
        self._blank = self._blank + 1 if is_blank else 0
        facts.blank_run = max(facts.blank_run, self._blank)
        wide = luma.astype(np.int64)
        self._sum += float(wide.sum())
        self._squares += float((wide * wide).sum())
        self._pixels += wide.size

    def close(self) -> None:
        """Write the totals."""
        if self._facts is None or not self._pixels:
            return
        mean = self._sum / self._pixels
        self._facts.luma_std = float(np.sqrt(max(self._squares / self._pixels - mean * mean, 0.0)))
        self._facts.last = self._last.to_ndarray(format="rgb24")


def _block_means(luma: Image) -> NDArray[np.float64]:
    side = min(_BLOCK_PIXELS, *luma.shape)
    rows, columns = luma.shape[0] // side, luma.shape[1] // side
    whole = luma[: rows * side, : columns * side]
    means: NDArray[np.float64] = whole.reshape(rows, side, columns, side).mean(axis=(1, 3))
    return means


def _plane(plane: Any) -> Image:
    """A plane's pixels without its row padding."""
    rows: Image = np.frombuffer(plane, np.uint8, plane.height * plane.line_size)
    return rows.reshape(plane.height, plane.line_size)[:, : plane.width]


class _SoundMeter:
    """Measures decoded sound without keeping it."""

    def __init__(self, facts: AudioFacts | None) -> None:
        self._facts = facts
        self._resampler = av.AudioResampler(format="fltp")
        self._digest = hashlib.sha256()
        self._squares = self._side_squares = 0.0
        self._values = 0

    def add(self, frame: Any) -> None:
        """Measure one frame."""
        facts = self._facts
        assert facts is not None
        for part in self._resampler.resample(frame):
            wave = part.to_ndarray()
            facts.samples += wave.shape[1]
            self._digest.update(np.ascontiguousarray(wave).tobytes())
            if not np.isfinite(wave).all():
                facts.finite = False
                continue
            facts.peak = max(facts.peak, float(np.abs(wave).max(initial=0.0)))
            exact = wave.astype(np.float64)
            self._squares += float((exact**2).sum())
            self._values += exact.size
            if len(exact) == AUDIO_CHANNELS:
                self._side_squares += float(((exact[0] - exact[1]) ** 2).sum())
        if facts.samples > _MAX_SAMPLES:
            raise _TooLongError(f"more than {_MAX_SAMPLES} samples")

    def close(self) -> None:
        """Write the totals."""
        if self._facts is not None and self._values:
            self._facts.rms = float(np.sqrt(self._squares / self._values))
            self._facts.side = float(np.sqrt(self._side_squares * AUDIO_CHANNELS / self._values))
            self._facts.sample_hash = self._digest.hexdigest()
