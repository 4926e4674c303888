"""A silent video stream and a waveform to one MP4 that plays while it loads."""

import io
import tempfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

import av
import numpy as np
from numpy.typing import NDArray

from minimax_h3.core.constants import AUDIO_CHANNELS, AUDIO_SAMPLE_RATE_HZ
from minimax_h3.core.errors import H3Error

Wave: TypeAlias = NDArray[np.float32]

AUDIO_BITS_PER_SECOND = 256_000  # an upper bound; tonal sound takes less than half of it
# The default coder spoils the first frame, an audible click where a clip starts in mid-sound:
# 14 to 32 dB below the sound instead of 44 to 67 dB. Noise substitution and intensity stereo
# replace the waveform by another one.
_AAC_OPTIONS = {"aac_coder": "fast", "aac_pns": "0", "aac_is": "0", "flags": "+bitexact"}
_AAC_FRAME_SAMPLES = 1024


def mux(video_stream: bytes, audio: Wave) -> bytes:
    """Join picture and sound.

    H.264 packets are copied unchanged; the sound becomes AAC whose presentation starts at 0. Equal
    inputs give equal bytes on one machine.

    Args:
        video_stream: silent MP4 of `h264.VideoStreamEncoder`.
        audio: fp32 [2, samples] within [-1, 1], 32 kHz, left and right; not trimmed.

    Returns:
        The file: `moov` before `mdat`, colour tags kept, no times or paths inside.

    Raises:
        ValueError: audio of a wrong shape, empty, or not finite.
        H3Error: the video stream is not readable, or writing failed.

    Source: pipeline sheet section 8.
    """
    if audio.ndim != 2 or audio.shape[0] != AUDIO_CHANNELS or not audio.shape[1]:
        raise ValueError(
            f"audio: shape {audio.shape} is not legal; legal: [{AUDIO_CHANNELS}, samples]"
        )
    if not np.isfinite(audio).all():
        raise ValueError("audio: not finite; legal: values in [-1, 1]")
    # The writer moves `moov` by reading its own file again, which a buffer in memory cannot offer.
    with tempfile.TemporaryDirectory(prefix="h3-mux-") as folder:
        path = Path(folder) / "clip.mp4"
        try:
            _write(path, video_stream, np.ascontiguousarray(audio, dtype=np.float32))
        except av.error.FFmpegError as error:
            raise H3Error(f"muxer: {error.strerror}") from error
        return path.read_bytes()


def _write(path: Path, video_stream: bytes, audio: Wave) -> None:
    options = {"movflags": "+faststart", "fflags": "+bitexact"}
    with (
        av.open(io.BytesIO(video_stream)) as source,
        av.open(str(path), "w", format="mp4", options=options) as target,
    ):
        pictures = source.streams.video[0]
        video = target.add_stream_from_template(pictures)
        sound = target.add_stream(
            "aac", rate=AUDIO_SAMPLE_RATE_HZ, layout="stereo", options=_AAC_OPTIONS
        )
        sound.bit_rate = AUDIO_BITS_PER_SECOND
        sound.time_base = Fraction(1, AUDIO_SAMPLE_RATE_HZ)
        for packet in source.demux(pictures):
            if packet.dts is not None:  # the demuxer's closing packet has none
                packet.stream = video
                target.mux(packet)
        for frame in _audio_frames(audio):
            for packet in sound.encode(frame):
                target.mux(packet)


def _audio_frames(audio: Wave) -> Iterator[Any]:
    """Planar AAC frames, then None, which flushes the encoder."""
    for start in range(0, audio.shape[1], _AAC_FRAME_SAMPLES):
        part = np.ascontiguousarray(audio[:, start : start + _AAC_FRAME_SAMPLES])
        frame = av.AudioFrame.from_ndarray(part, format="fltp", layout="stereo")
        frame.sample_rate = AUDIO_SAMPLE_RATE_HZ
        frame.pts = start
        frame.time_base = Fraction(1, AUDIO_SAMPLE_RATE_HZ)
        yield frame
    yield None
