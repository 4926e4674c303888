"""Sound files and soundtracks: measured first, then read as 32 kHz stereo."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import av
import numpy as np
from numpy.typing import NDArray

from minimax_h3.core.constants import AUDIO_CHANNELS, AUDIO_SAMPLE_RATE_HZ
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.core.limits import (
    LIMITS,
    PCM_PREFIX,
    SECONDS_SLACK,
    SOUND_CODECS,
    SOUNDTRACK_CODECS,
    check,
)
from minimax_h3.media.containers import (
    codec_name,
    damaged,
    opened,
    packets,
    picture_stream,
    ready_to_decode,
    sound_stream,
)
from minimax_h3.media.kinds import MP3, FileFormat, behind_id3
from minimax_h3.media.resample import resample

Wave: TypeAlias = NDArray[np.float32]

# Decoders overshoot full scale a little; a float file beyond this holds no sound.
_MAX_PEAK = 16.0
_INFO_FRAME_BYTES = 64  # of an MP3's first frame; the tag lies behind its side information
_MAX_SECONDS = LIMITS["sound_seconds"].high
_COUNTED_SECONDS = _MAX_SECONDS + 2 * SECONDS_SLACK  # a longer sound is refused or cut off


@dataclass(frozen=True, slots=True)
class SoundMeasure:
    """A sound as it is stored.

    Attributes:
        codec: FFmpeg's name.
        rate_hz: sample rate.
        channels: channels.
        samples: per channel; counted up to a little more than the longest legal sound.
        start: time of the first sample on the file's clock, in seconds.
    """

    codec: str
    rate_hz: int
    channels: int
    samples: int
    start: Fraction

    @property
    def span(self) -> Fraction:
        """Length in seconds."""
        return Fraction(self.samples, self.rate_hz)


def measure_sound(encoded: bytes, form: FileFormat, name: str) -> SoundMeasure | None:
    """Decode the first sound stream without keeping it.

    Returns:
        The measure, or None where the file has no sound stream.

    Raises:
        InvalidRequestError: an unknown codec, an illegal rate or channel count, no samples, values
            that are no sound, or damage.
    """
    with opened(encoded, form, name) as container:
        stream = sound_stream(container)
        if stream is None:
            return None
        codec = _checked_codec(
            stream, has_pictures=picture_stream(container) is not None, name=name
        )
        declared = _declared_seconds(encoded, form, stream)
        first, samples = None, 0
        for frame in _frames(container, stream, form, name):
            if first is None:
                first = frame
                check("sound_rate", frame.sample_rate, f"{name}: sound")
                check("sound_channels", frame.layout.nb_channels, f"{name}: sound")
            _check_frame(frame, first, form, name)
            samples += frame.samples
            if samples > _COUNTED_SECONDS * frame.sample_rate:
                break
    if first is None or not samples:
        raise InvalidRequestError(
            f"{name}: sound without samples is not legal; legal: sound, or no sound stream"
        )
    seconds = samples / first.sample_rate
    if seconds < min(declared, _COUNTED_SECONDS) - SECONDS_SLACK:
        raise damaged(form.name, name, f"{seconds:.2f} s of the {declared:.2f} s that it declares")
    return SoundMeasure(codec, first.sample_rate, first.layout.nb_channels, samples, _time(first))


def _checked_codec(stream: Any, *, has_pictures: bool, name: str) -> str:
    codec = codec_name(stream)
    legal = SOUNDTRACK_CODECS if has_pictures else SOUND_CODECS
    if codec not in legal and not codec.startswith(PCM_PREFIX):
        raise InvalidRequestError(
            f"{name}: sound codec {codec} is not legal; legal: {', '.join(legal)} or PCM"
        )
    return codec


def _declared_seconds(encoded: bytes, form: FileFormat, stream: Any) -> float:
    """Length that the info frame of an MP3 declares; 0 where only a guess is to be had."""
    start = behind_id3(encoded)
    head = encoded[start : start + _INFO_FRAME_BYTES]
    if form.name != MP3 or not (b"Xing" in head or b"Info" in head) or not stream.duration:
        return 0.0
    return float(stream.duration * stream.time_base)


def _frames(container: Any, stream: Any, form: FileFormat, name: str) -> Iterator[Any]:
    ready_to_decode(stream, threads=1)
    for packet in packets(container, stream, form, name):
        yield from packet.decode()


def _time(frame: Any) -> Fraction:
    return Fraction(0) if frame.pts is None else frame.pts * Fraction(frame.time_base)


def _check_frame(frame: Any, first: Any, form: FileFormat, name: str) -> None:
    same_rate = frame.sample_rate == first.sample_rate
    if not same_rate or frame.layout.nb_channels != first.layout.nb_channels:
        raise damaged(form.name, name, "its sample rate or channels change")
    if not frame.format.name.startswith(("flt", "dbl")):
        return
    wave = frame.to_ndarray()
    if not np.isfinite(wave).all() or np.abs(wave).max(initial=0) > _MAX_PEAK:
        raise InvalidRequestError(
            f"{name}: samples beyond {_MAX_PEAK:g} or not finite are not legal; "
            "legal: sound within -1..1"
        )


def sound_samples(seconds_limit: float, rate_hz: int) -> int:
    """Most native samples that are used of a sound: it is cut off before it is resampled.

    Args:
        seconds_limit: length of the clip that is made, in seconds.
        rate_hz: the sound's own rate.

    Source: pipeline sheet section 1.7.
    """
    return int(min(seconds_limit, _MAX_SECONDS) * rate_hz)


def resampled_length(samples: int, rate_hz: int) -> int:
    """Samples of a sound at 32 kHz."""
    return -(-samples * AUDIO_SAMPLE_RATE_HZ // rate_hz)


def read_sound(
    encoded: bytes, form: FileFormat, name: str, start: Fraction | None, seconds_limit: float
) -> Wave:
    """Read a sound as the audio VAE takes it.

    Args:
        encoded: the file.
        form: its format.
        name: the file as a client counts it.
        start: time of the first wanted sample on the file's clock, in seconds; a sound that begins
            later is preceded by silence. None takes the sound from its own beginning.
        seconds_limit: length at which it is cut off, in seconds.

    Returns:
        fp32 [2, samples] at 32 kHz: mono twice, more than two channels mixed down.

    Raises:
        InvalidRequestError: damage, or nothing left behind `start`.
    """
    with opened(encoded, form, name) as container:
        stream = sound_stream(container)
        parts: list[Wave] = []
        rate = skip = wanted = held = 0
        for frame in _frames(container, stream, form, name):
            if not rate:
                rate, mixer = frame.sample_rate, _mixer(frame)
                skip = 0 if start is None else skipped_samples(start, _time(frame), rate)
                wanted = skip + sound_samples(seconds_limit, rate)
            for part in mixer.resample(frame):
                parts.append(part.to_ndarray())
                held += part.samples
            if held >= wanted:
                break
    if held <= skip:
        raise damaged(form.name, name, "no sound where there was some before")
    wave = np.concatenate(parts, axis=1)[:, max(skip, 0) : wanted]
    wave = np.pad(wave, ((0, 0), (max(-skip, 0), 0)))
    if len(wave) != AUDIO_CHANNELS:
        wave = np.repeat(wave, AUDIO_CHANNELS, axis=0)
    return np.ascontiguousarray(resample(wave, rate, AUDIO_SAMPLE_RATE_HZ))


def skipped_samples(start: Fraction, first: Fraction, rate_hz: int) -> int:
    """Samples before `start` of a sound whose first sample is at `first`; negative for silence."""
    return round((start - first) * rate_hz)


def _mixer(frame: Any) -> Any:
    """Planar floats at the sound's own rate; FFmpeg's matrix for more than two channels."""
    layout = frame.layout if frame.layout.nb_channels <= AUDIO_CHANNELS else "stereo"
    return av.AudioResampler(format="fltp", layout=layout, rate=frame.sample_rate)
