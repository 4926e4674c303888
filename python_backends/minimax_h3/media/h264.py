"""Frames to a silent H.264 stream in MP4, in memory, while later frames are being made."""

import io
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from fractions import Fraction
from typing import Any, TypeAlias, TypeVar

import av
import numpy as np
from av.video.reformatter import (
    ColorPrimaries,
    ColorRange,
    Colorspace,
    ColorTrc,
    Interpolation,
    VideoReformatter,
)
from numpy.typing import NDArray

from minimax_h3.core.constants import VIDEO_FPS
from minimax_h3.core.errors import H3Error
from minimax_h3.core.fields import DEFAULT_CRF, DEFAULT_PRESET

Frames: TypeAlias = NDArray[np.uint8]
_Result = TypeVar("_Result")

PIXEL_FORMAT = "yuv420p"
# x264 writes other bytes for another thread count, so the count may not follow the machine. With 4
# threads a noisy 1344x768 came at 20 frames a second, slower than an H200 decodes it; x264 takes 12
# for that size and fewer for less lines. Each takes a frame of its own: with slices of one frame
# the last clip is done later and the file is larger.
_THREADS, _THREAD_TYPE = 16, "FRAME"
# The macroblock tree reads memory that it never wrote (AVX-512 code of x264 165): with it, equal
# frames gave up to ten different files in ten runs. Without it the picture costs no more bytes.
_X264_PARAMS = "mbtree=0"
_MAX_PENDING_PUSHES = 2


class VideoStreamEncoder:
    """libx264 at 24 frames per second, BT.709 limited range, tagged as such.

    Equal frames give equal bytes on one machine.
    """

    _INTERLEAVED = 4  # dimensions of RGB frames; planar ones have three

    def __init__(
        self, width: int, height: int, preset: str = DEFAULT_PRESET, crf: int = DEFAULT_CRF
    ) -> None:
        """Open the encoder.

        Args:
            width: frame width in pixels, even.
            height: frame height in pixels, even.
            preset: x264 speed preset.
            crf: constant rate factor, 0..51; lower is better and larger.

        Raises:
            ValueError: a size that 4:2:0 cannot hold.
            H3Error: the encoder refuses the settings.
        """
        if width <= 0 or height <= 0 or width % 2 or height % 2:
            raise ValueError(f"width, height: {width}x{height} is not legal; legal: even sizes")
        self._shape, self._planar = (height, width, 3), (height * 3 // 2, width)
        self._count = 0
        self._file = io.BytesIO()
        self._reformatter = VideoReformatter()
        # bitexact keeps library versions and times out of the file.
        self._container: Any = av.open(
            self._file, "w", format="mp4", options={"fflags": "+bitexact"}
        )
        options = {"preset": preset, "crf": str(crf), "x264-params": _X264_PARAMS}
        stream = self._container.add_stream("libx264", rate=VIDEO_FPS, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, PIXEL_FORMAT
        stream.time_base = Fraction(1, VIDEO_FPS)
        stream.thread_count, stream.thread_type = _THREADS, _THREAD_TYPE
        context = stream.codec_context
        context.color_primaries = ColorPrimaries.BT709
        context.color_trc = ColorTrc.BT709
        context.colorspace = Colorspace.ITU709
        context.color_range = ColorRange.MPEG
        self._stream = stream
        try:
            context.open()
        except (av.error.FFmpegError, ValueError) as error:
            self.close()
            raise H3Error(f"H.264 encoder: preset {preset!r}, crf {crf}: {error}") from error

    def push(self, frames: Frames) -> None:
        """Append frames.

        Args:
            frames: uint8 RGB [k, H, W, 3], or planar 4:2:0 [k, 3 H / 2, W], which is BT.709 of
                limited range already: H rows of Y, then U and V, each in H / 4 rows.

        Raises:
            ValueError: frames of another size or type.
            H3Error: the encoder failed, or is closed.
        """
        self.check(frames)
        to_frame = self._to_yuv if frames.ndim == self._INTERLEAVED else self._as_yuv
        for frame in np.ascontiguousarray(frames):
            self._encode(to_frame(frame))

    def check(self, frames: Frames) -> None:
        """Raise the `ValueError` of `push`, without encoding."""
        if frames.dtype != np.uint8 or frames.shape[1:] not in (self._shape, self._planar):
            legal = " or ".join(
                f"[k, {', '.join(map(str, shape))}]" for shape in (self._shape, self._planar)
            )
            raise ValueError(
                f"frames: {frames.dtype} {frames.shape} is not legal; legal: uint8 {legal}"
            )

    @staticmethod
    def _as_yuv(frame: Frames) -> Any:
        """Planes as they are; only the tags are missing."""
        planes = av.VideoFrame.from_ndarray(frame, format=PIXEL_FORMAT)
        planes.colorspace, planes.color_range = Colorspace.ITU709, ColorRange.MPEG
        planes.color_primaries, planes.color_trc = ColorPrimaries.BT709, ColorTrc.BT709
        return planes

    def _to_yuv(self, frame: Frames) -> Any:
        return self._reformatter.reformat(
            av.VideoFrame.from_numpy_buffer(frame, format="rgb24"),
            format=PIXEL_FORMAT,
            src_colorspace=Colorspace.ITU709,
            dst_colorspace=Colorspace.ITU709,
            src_color_range=ColorRange.JPEG,
            dst_color_range=ColorRange.MPEG,
            dst_color_trc=ColorTrc.BT709,
            dst_color_primaries=ColorPrimaries.BT709,
            interpolation=Interpolation.BICUBIC | Interpolation.ACCURATE_RND,
            threads=1,
        )

    def _encode(self, frame: Any) -> None:
        if self._container is None:
            raise H3Error("H.264 encoder: closed")
        if frame is not None:
            frame.pts = self._count
            frame.time_base = Fraction(1, VIDEO_FPS)
            self._count += 1
        try:
            for packet in self._stream.encode(frame):
                self._container.mux(packet)
        except av.error.FFmpegError as error:
            self.close()
            raise H3Error(f"H.264 encoder: frame {self._count}: {error}") from error

    def finish(self) -> bytes:
        """Flush the encoder and close it.

        Returns:
            A silent MP4 with one video stream.

        Raises:
            H3Error: no frame was pushed, the encoder failed, or it is closed.
        """
        if not self._count:
            self.close()
            raise H3Error("H.264 encoder: finished without a frame")
        self._encode(None)
        self.close()
        return self._file.getvalue()

    def close(self) -> None:
        """Free the encoder; what was pushed is dropped unless `finish` was called before."""
        container, self._container = self._container, None
        if container is not None:
            container.close()


class ThreadedVideoEncoder:
    """A `VideoStreamEncoder` in a thread of its own, so that encoding hides behind decoding.

    At most two chunks wait; a third `push` blocks until one is done. An error of the encoder is
    raised by the next `push` or by `finish`; after it the encoder is closed. Leaving a `with` block
    without `finish` aborts.
    """

    def __init__(
        self, width: int, height: int, preset: str = DEFAULT_PRESET, crf: int = DEFAULT_CRF
    ) -> None:
        """Open the encoder; arguments and errors as `VideoStreamEncoder`."""
        self._encoder = VideoStreamEncoder(width, height, preset, crf)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="h264")
        self._pending: deque[Future[None]] = deque()

    def __enter__(self) -> "ThreadedVideoEncoder":
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    def push(self, frames: Frames) -> None:
        """Hand over frames; the caller must not write into them afterwards.

        Raises:
            ValueError: frames of another size or type.
            H3Error: an earlier chunk failed, or the encoder is closed.
        """
        self._encoder.check(frames)
        self._settle(_MAX_PENDING_PUSHES - 1)
        self._pending.append(self._submit(self._encoder.push, frames))

    def finish(self) -> bytes:
        """Wait for all chunks and close the encoder.

        Returns:
            A silent MP4, the same bytes as `VideoStreamEncoder.finish`.

        Raises:
            H3Error: a chunk failed, no frame was pushed, or the encoder is closed.
        """
        self._settle(0)
        try:
            return self._submit(self._encoder.finish).result()
        finally:
            self.abort()

    def abort(self) -> None:
        """Drop waiting chunks, wait for the one in work, free the encoder. Safe to call again."""
        self._pending.clear()
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._encoder.close()

    def _submit(self, work: Callable[..., _Result], *args: object) -> "Future[_Result]":
        try:
            return self._worker.submit(work, *args)
        except RuntimeError as error:
            raise H3Error("H.264 encoder: closed") from error

    def _settle(self, allowed: int) -> None:
        """Wait until at most `allowed` chunks are unfinished."""
        try:
            while len(self._pending) > allowed:
                self._pending.popleft().result()
        except BaseException:
            self.abort()
            raise
