"""Videos: when each frame is shown, and upright frames at 24 a second on the model's canvas."""

import math
import os
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from PIL import Image

from minimax_h3.core.canvas import RELEASED, CanvasRule, canvas_from_size
from minimax_h3.core.constants import VIDEO_FPS
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.core.limits import VIDEO_CODECS, check
from minimax_h3.media.containers import (
    codec_name,
    damaged,
    opened,
    packets,
    picture_stream,
    ready_to_decode,
)
from minimax_h3.media.kinds import FileFormat
from minimax_h3.media.pictures import Pixels, resize

_WORKERS = max(1, min(4, os.cpu_count() or 1))  # of the decoder, and of the resizing behind it
_AHEAD = 2 * _WORKERS  # frames that wait in order; bounds the memory


@dataclass(frozen=True, slots=True)
class Timeline:
    """When the frames of a video are shown.

    Attributes:
        ticks: times of the shown frames on the file's clock, in order.
        end: where the last one ends, in ticks.
        tick: seconds of one tick.
    """

    ticks: tuple[int, ...]
    end: int
    tick: Fraction

    @property
    def frames(self) -> int:
        """Number of shown frames."""
        return len(self.ticks)

    @property
    def first(self) -> Fraction:
        """Time of the first frame, in seconds."""
        return self.ticks[0] * self.tick

    @property
    def span(self) -> Fraction:
        """From the start of the first frame to the end of the last one, in seconds."""
        return (self.end - self.ticks[0]) * self.tick

    def slot(self, ticks: int, start: Fraction) -> int:
        """The slot at 24 a second of a time, counted from `start` seconds into the video.

        Source: pipeline sheet section 1.7, floor(time * 24 + 0.5).
        """
        time = (ticks - self.ticks[0]) * self.tick - start
        return math.floor(time * VIDEO_FPS + Fraction(1, 2))


@dataclass(frozen=True, slots=True)
class VideoMeasure:
    """A video as it is stored.

    Attributes:
        codec: FFmpeg's name.
        width, height: upright, in stored pixels.
        pixel_ratio: width of an upright stored pixel over its height.
    """

    codec: str
    width: int
    height: int
    pixel_ratio: Fraction
    timeline: Timeline

    @property
    def fps(self) -> float:
        """Average rate, frames a second."""
        return float(self.timeline.frames / self.timeline.span)


def measure_video(encoded: bytes, form: FileFormat, name: str) -> VideoMeasure | None:
    """Read every packet of the first video stream and decode its first frame.

    Returns:
        The measure, or None where the file has no video stream.

    Raises:
        InvalidRequestError: an unknown codec, no frames, damage, or outside the limits of videos.
    """
    with opened(encoded, form, name) as container:
        stream = picture_stream(container)
        if stream is None:
            return None
        codec = codec_name(stream)
        if codec not in VIDEO_CODECS:
            raise InvalidRequestError(
                f"{name}: video codec {codec} is not legal; legal: {', '.join(VIDEO_CODECS)}"
            )
        _check_size(stream.codec_context.width, stream.codec_context.height, name)
        timeline = _scan(container, stream, form, name)
        pixel_ratio = stream.sample_aspect_ratio or Fraction(1)
    rate = float(timeline.frames / timeline.span)
    measured = f"{name}: {timeline.frames} frames at {rate:.4g} a second"
    check("video_seconds", float(timeline.span), measured)
    check("video_fps", rate, measured)
    frame = _first_frame(encoded, form, name)
    sideways = bool(_quarter_turns(frame) % 2)
    width, height = (frame.height, frame.width) if sideways else (frame.width, frame.height)
    _check_size(width, height, name)
    upright_ratio = 1 / pixel_ratio if sideways else pixel_ratio
    check("video_ratio", float(width * upright_ratio / height), name)
    return VideoMeasure(codec, width, height, upright_ratio, timeline)


def _check_size(width: int, height: int, name: str) -> None:
    check("video_side", min(width, height), name)
    check("video_side", max(width, height), name)
    check("video_pixels", width * height, name)


def _scan(container: Any, stream: Any, form: FileFormat, name: str) -> Timeline:
    """The timeline from the packets alone."""
    shown: list[tuple[int, int]] = []
    for packet in packets(container, stream, form, name):
        if not packet.size or packet.is_discard:
            continue
        if packet.is_corrupt or packet.pts is None:
            raise damaged(form.name, name, f"frame {len(shown)}")
        shown.append((packet.pts, packet.duration or 0))
    if not shown:
        raise InvalidRequestError(f"{name}: a video without frames is not legal; legal: 2 s of it")
    shown.sort()
    (first, _), (last, duration) = shown[0], shown[-1]
    if duration <= 0:  # no container of ours leaves it out, but a damaged one may
        duration = (last - first) // max(len(shown) - 1, 1)
    if last + duration <= first:
        raise damaged(form.name, name, "no time between its frames")
    ticks = tuple(time for time, _ in shown)
    return Timeline(ticks, last + duration, Fraction(stream.time_base))


def _first_frame(encoded: bytes, form: FileFormat, name: str) -> Any:
    with opened(encoded, form, name) as container:
        stream = picture_stream(container)
        ready_to_decode(stream, threads=1)
        for packet in packets(container, stream, form, name):
            for frame in packet.decode():
                return frame
    raise damaged(form.name, name, "its first frame")


def _decoded(
    container: Any, stream: Any, form: FileFormat, name: str, wanted: set[int]
) -> Iterator[Any]:
    """The frames at the wanted ticks and some others, in order."""
    ready_to_decode(stream, _WORKERS)
    can_skip = codec_name(stream) == "h264"
    size = None
    for packet in packets(container, stream, form, name):
        # Frames that are neither shown nor referred to need no decoding: a third of the time. What
        # HEVC calls non-reference may still be referred to by frames of higher temporal layers.
        skips = can_skip and packet.pts not in wanted
        stream.codec_context.skip_frame = "NONREF" if skips else "DEFAULT"
        for frame in packet.decode():
            if frame.is_corrupt or frame.pts is None:
                raise damaged(form.name, name, _place(frame))
            size = size or (frame.width, frame.height)
            if size != (frame.width, frame.height):
                raise damaged(form.name, name, f"frames change size, {_place(frame)}")
            yield frame


def _place(frame: Any) -> str:
    return "a frame without a time" if frame.time is None else f"the frame at {frame.time:.4g} s"


def _quarter_turns(frame: Any) -> int:
    """Quarter turns, counterclockwise, that the file asks for; undone to bring a frame upright."""
    return round(frame.rotation / 90) % 4


def video_origin(encoded: bytes, form: FileFormat, name: str) -> Fraction:
    """Time of a video's first shown frame on the file's clock, in seconds; no frame is decoded.

    Raises:
        InvalidRequestError: damage.
    """
    with opened(encoded, form, name) as container:
        return _scan(container, picture_stream(container), form, name).first


def presented_frames(span: Fraction, start: Fraction, target_frames: int) -> int:
    """Frames at 24 a second of a video from `start` on, cut at the target's length.

    Source: pipeline sheet section 1.7; the last frame is held to the rounded end of the video.
    """
    return min(target_frames, math.floor((span - start) * VIDEO_FPS + Fraction(1, 2)))


def video_canvas(measure: VideoMeasure, rule: CanvasRule = RELEASED) -> tuple[int, int]:
    """Width and height of the canvas of a video's own shape as it is displayed."""
    return canvas_from_size(float(measure.width * measure.pixel_ratio), measure.height, rule)


@dataclass(frozen=True, slots=True)
class VideoWindow:
    """The part of a video that is prepared.

    Attributes:
        width, height: canvas in pixels.
        start: skipped at the beginning, in seconds.
        num_frames: prepared frames.
        stride: only every `stride`-th of them is wanted.
    """

    width: int
    height: int
    start: Fraction
    num_frames: int
    stride: int = 1


def prepare_video(
    encoded: bytes, form: FileFormat, name: str, window: VideoWindow
) -> Iterator[Pixels]:
    """Decode a video at 24 frames a second, upright, on its canvas; a few frames in memory.

    A frame goes to the slot next to its time and is held up to the slot of the next one, so that
    whole frames are dropped or repeated, whatever the rate and however uneven it is.

    Yields:
        uint8 [height, width, 3], `num_frames / stride` of them, rounded up. A repeated frame is the
        same array.

    Raises:
        InvalidRequestError: damage.

    Source: pipeline sheet section 1.7; slot = floor(time * 24 + 0.5), then Lanczos.
    """

    def convert(frame: Any) -> Pixels:
        pixels = frame.to_ndarray(format="rgb24")
        turns = _quarter_turns(frame)
        if turns:
            pixels = np.ascontiguousarray(np.rot90(pixels, -turns))
        return resize(Image.fromarray(pixels), window.width, window.height)

    with opened(encoded, form, name) as container:
        stream = picture_stream(container)
        timeline = _scan(container, stream, form, name)
        container.seek(0)
        wanted = _wanted_ticks(timeline, window)
        frames = _decoded(container, stream, form, name, wanted)
        yield from _convert_ahead(_on_grid(frames, timeline, window), convert)


def _wanted_ticks(timeline: Timeline, window: VideoWindow) -> set[int]:
    """The frames that fill the wanted slots: of each, the last one that is not later."""
    slots = [timeline.slot(ticks, window.start) for ticks in timeline.ticks]
    wanted = range(0, window.num_frames, window.stride)
    return {timeline.ticks[max(bisect_right(slots, slot) - 1, 0)] for slot in wanted}


def _on_grid(
    frames: Iterable[Any], timeline: Timeline, window: VideoWindow
) -> Iterator[tuple[Any, int]]:
    """Wanted frames, each with the number of wanted slots that it fills."""
    held, filled = None, 0

    def wanted(until: int) -> int:
        return -(-until // window.stride) - -(-filled // window.stride)

    for frame in frames:
        slot = min(timeline.slot(frame.pts, window.start), window.num_frames)
        if held is not None and slot > filled:
            yield held, wanted(slot)
            filled = slot
            if filled == window.num_frames:
                return
        held = frame
    if held is not None:
        yield held, wanted(window.num_frames)


def _convert_ahead(
    frames: Iterable[tuple[Any, int]], convert: Callable[[Any], Pixels]
) -> Iterator[Pixels]:
    """Convert in threads while later frames are decoded, in order."""
    pending: deque[tuple[Future[Pixels], int]] = deque()

    def oldest() -> Iterator[Pixels]:
        made, copies = pending.popleft()
        pixels = made.result()
        for _ in range(copies):
            yield pixels

    with ThreadPoolExecutor(_WORKERS, thread_name_prefix="frames") as workers:
        for frame, copies in frames:
            if copies:
                pending.append((workers.submit(convert, frame), copies))
            if len(pending) > _AHEAD:
                yield from oldest()
        while pending:
            yield from oldest()
