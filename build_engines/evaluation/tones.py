"""What is heard: pitches, where each tone sits between left and right, and clicks."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from minimax_h3.core.constants import AUDIO_SAMPLE_RATE_HZ as RATE
from minimax_h3.core.constants import VIDEO_FPS

Wave: TypeAlias = NDArray[np.float32]
Array: TypeAlias = NDArray[np.float64]

_LOWEST_HZ, _HIGHEST_HZ = 150.0, 1000.0
_WINDOW = 16_384
_MIN_SHARE = 0.12  # of the loudest tone; softer ones are not counted
_SAME_SEMITONES = 1.5  # closer peaks are one tone
_OVERTONE_SEMITONES = 0.5
_PAN_WINDOW = 4096
_MIN_LEVEL_SHARE = 0.2
CLICK_BAND_HZ = (1900.0, 4500.0)
_BAND_EDGE_HZ = 150.0
_CLICK_SMOOTH_S = 0.0008
_MIN_CLICK = 0.03
_MIN_CLICK_SHARE = 0.3  # of the loudest click
_CLICK_GAP_S = 0.03


@dataclass(frozen=True, slots=True)
class Tone:
    """A tone of a clip.

    Attributes:
        pitch_hz: of its fundamental.
        level: mean amplitude, both channels together.
        pan: 0 (left) to 1 (right) for every frame of the picture; NaN while it is silent.
    """

    pitch_hz: float
    level: float
    pan: Array


def find_tones(wave: Wave, num_frames: int, most: int = 2) -> list[Tone]:
    """The loudest tones, their overtones left out.

    Args:
        wave: fp32 [2, samples] at 32 kHz.
        num_frames: frames of the picture, at which the pan is told.
        most: tones to return.

    Returns:
        At most `most` tones, the loudest first.
    """
    power, step = _spectrum(wave)
    first, last = int(_LOWEST_HZ / step), min(int(_HIGHEST_HZ / step), len(power) - 2)
    bins = np.arange(first, last)
    peaks = bins[(power[bins] > power[bins - 1]) & (power[bins] >= power[bins + 1])]
    peaks = peaks[np.argsort(-power[peaks])]
    kept: list[float] = []
    for peak in peaks:
        if power[peak] < _MIN_SHARE**2 * power[peaks[0]] or len(kept) == most:
            break
        pitch = _refine(power, int(peak)) * step
        if not any(_belongs(pitch, other) for other in kept):
            kept.append(pitch)
    return [_tone(wave, pitch, num_frames) for pitch in kept]


def semitones(pitch_hz: float, reference_hz: float) -> float:
    """Distance of two pitches, positive when the first is higher."""
    return float(12 * np.log2(pitch_hz / reference_hz))


def _spectrum(wave: Wave) -> tuple[Array, float]:
    """Power over both channels and all windows, and the width of a bin in Hz."""
    padded = np.pad(wave, ((0, 0), (0, max(0, _WINDOW - wave.shape[1]))))
    starts = range(0, padded.shape[1] - _WINDOW + 1, _WINDOW // 4)
    window = np.hanning(_WINDOW)
    parts = np.stack([padded[:, start : start + _WINDOW] * window for start in starts])
    return (np.abs(np.fft.rfft(parts)) ** 2).sum((0, 1)), RATE / _WINDOW


def _refine(power: Array, peak: int) -> float:
    """Place of a peak between bins, by a parabola through the logarithms."""
    low, middle, high = np.log(power[peak - 1 : peak + 2] + 1e-20)
    bend = low - 2 * middle + high
    return peak + (0.5 * float(low - high) / float(bend) if bend else 0.0)


def _belongs(pitch: float, other: float) -> bool:
    """Whether a peak is a side lobe or an overtone of a louder one."""
    distance = semitones(pitch, other)
    if abs(distance) < _SAME_SEMITONES:
        return True
    ratio = max(round(pitch / other), 1)
    return ratio > 1 and abs(semitones(pitch, ratio * other)) < _OVERTONE_SEMITONES


def _tone(wave: Wave, pitch: float, num_frames: int) -> Tone:
    times = np.arange(wave.shape[1]) / RATE
    carrier = np.exp(-2j * np.pi * pitch * times)
    window = np.hanning(_PAN_WINDOW)
    window /= window.sum() / 2
    centres = ((np.arange(num_frames) + 0.5) / VIDEO_FPS * RATE).astype(int)
    moved = np.pad(wave * carrier, ((0, 0), (_PAN_WINDOW // 2, _PAN_WINDOW)))
    centres = np.minimum(centres, wave.shape[1])
    levels = np.array([np.abs(moved[:, c : c + _PAN_WINDOW] @ window) for c in centres])
    total = np.hypot(levels[:, 0], levels[:, 1])
    pan = np.arctan2(levels[:, 1], levels[:, 0]) * 2 / np.pi
    heard = total > _MIN_LEVEL_SHARE * total.max()
    return Tone(pitch, float(total[heard].mean()), np.where(heard, pan, np.nan))


def find_clicks(wave: Wave) -> list[float]:
    """Start of every click, in seconds."""
    envelope = _click_envelope(wave)
    if envelope.size == 0 or envelope.max() < _MIN_CLICK:
        return []
    threshold = max(_MIN_CLICK, _MIN_CLICK_SHARE * float(envelope.max()))
    gap = int(_CLICK_GAP_S * RATE)
    clicks: list[float] = []
    position = 0
    above = np.flatnonzero(envelope > threshold)
    while True:
        later = above[np.searchsorted(above, position) :]
        if not later.size:
            return clicks
        start = int(later[0])
        peak = start + int(envelope[start : start + gap // 2].argmax())
        rise = envelope[max(0, peak - gap // 2) : peak + 1]
        below = np.flatnonzero(rise < 0.5 * envelope[peak])
        clicks.append((peak - len(rise) + 1 + (int(below[-1]) + 1 if below.size else 0)) / RATE)
        position = peak + gap


def _click_envelope(wave: Wave) -> Array:
    """Amplitude in the band of clicks, above all tones and their octaves."""
    mono = wave.astype(np.float64).sum(0)
    spectrum = np.fft.fft(mono)
    frequency = np.fft.fftfreq(len(mono), 1 / RATE)
    low, high = CLICK_BAND_HZ
    rising = np.clip((frequency - low) / _BAND_EDGE_HZ, 0, 1)
    falling = np.clip((high - frequency) / _BAND_EDGE_HZ, 0, 1)
    # Positive frequencies only: the result is the analytic signal, its magnitude the envelope.
    envelope = np.abs(np.fft.ifft(2 * spectrum * rising * falling))
    width = max(1, int(_CLICK_SMOOTH_S * RATE))
    return np.convolve(envelope, np.full(width, 1 / width), mode="same")
