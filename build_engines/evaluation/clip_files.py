"""Clips and pictures from files to arrays, with bounds on what is read."""

import itertools
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from minimax_h3.core.constants import AUDIO_SAMPLE_RATE_HZ
from minimax_h3.core.errors import InvalidRequestError

_MAX_FRAMES = 400
_MAX_PIXELS = 2048 * 2048
_MAX_SAMPLES = 20 * AUDIO_SAMPLE_RATE_HZ


def read_clip(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Decode an MP4 of this product.

    Returns:
        RGB frames [F, H, W, 3] and the waveform [2, samples].

    Raises:
        InvalidRequestError: it is not readable, has no picture or no 32 kHz stereo sound, or is
            larger than anything that is measured.
    """
    try:
        with av.open(str(path)) as container:
            frames = _frames(path, container)
        with av.open(str(path)) as container:
            return frames, _wave(path, container)
    except (av.error.FFmpegError, OSError) as error:
        raise InvalidRequestError(f"{path}: not readable: {error}") from error


def read_picture(path: Path) -> NDArray[np.uint8]:
    """Read a picture as RGB [H, W, 3].

    Raises:
        InvalidRequestError: it is not a picture, or is larger than anything that is measured.
    """
    try:
        with Image.open(path) as picture:
            if picture.width * picture.height > _MAX_PIXELS:
                raise InvalidRequestError(
                    f"{path}: {picture.width}x{picture.height} is not legal; legal: up to "
                    f"{_MAX_PIXELS} pixels"
                )
            return np.asarray(picture.convert("RGB"))
    except OSError as error:
        raise InvalidRequestError(f"{path}: not a picture: {error}") from error


def _frames(path: Path, container: Any) -> NDArray[np.uint8]:
    if not container.streams.video:
        raise InvalidRequestError(f"{path}: has no picture")
    stream = container.streams.video[0]
    if stream.width * stream.height > _MAX_PIXELS:
        raise InvalidRequestError(
            f"{path}: {stream.width}x{stream.height} is not legal; legal: up to "
            f"{_MAX_PIXELS} pixels"
        )
    decoded = itertools.islice(container.decode(stream), _MAX_FRAMES + 1)
    frames = [frame.to_ndarray(format="rgb24") for frame in decoded]
    if not 0 < len(frames) <= _MAX_FRAMES:
        raise InvalidRequestError(
            f"{path}: {len(frames)} frames are not legal; legal: 1 to {_MAX_FRAMES}"
        )
    return np.stack(frames)


def _wave(path: Path, container: Any) -> NDArray[np.float32]:
    stream = next(iter(container.streams.audio), None)
    if stream is None or stream.rate != AUDIO_SAMPLE_RATE_HZ or stream.channels != 2:
        raise InvalidRequestError(f"{path}: has no stereo sound of {AUDIO_SAMPLE_RATE_HZ} Hz")
    parts: list[NDArray[np.float32]] = []
    count = 0
    for frame in container.decode(stream):
        parts.append(frame.to_ndarray())
        count += frame.samples
        if count > _MAX_SAMPLES:
            raise InvalidRequestError(f"{path}: longer than {_MAX_SAMPLES} samples")
    if not parts:
        raise InvalidRequestError(f"{path}: the sound is empty")
    return np.concatenate(parts, axis=1).astype(np.float32)
