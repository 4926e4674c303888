"""How far the clicks of a sound are from where they belong, whatever their phase."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from build_engines.evaluation.tones import CLICK_BAND_HZ
from minimax_h3.core.constants import AUDIO_SAMPLE_RATE_HZ

_TAPS = 129  # 4 ms
_INSIDE_HZ = 250.0  # of the band lie its edges: no tone passes, and its octave with -44 dB
_WINDOWS_AND_HOPS = ((32, 8), (128, 32), (512, 128))  # samples: 1, 4 and 16 ms
# Squared amplitudes of the band, summed over a sound, that count as none; a soft click has 4.
_SILENT = 1.0
_FLAT = 1e-3  # squared relative distance up to which there is no hurry to do better
_FAINT = 1e-3  # amplitude that is as good as none; a click in the middle has 0.25
_LEAST = 1e-10  # power in a window at which its amplitude is no longer steep


class ClickError(nn.Module):
    """Distance of short-time amplitudes in the band of clicks, relative and in decibels.

    An error of the waveform punishes a click whose phase is wrong twice as much as a missing one,
    so a model that cannot place it to 0.1 ms leaves it out. Amplitudes over 1 ms say where a click
    is, those over 16 ms that one is near. On the way from none to some the relative distance alone
    hardly falls, beside all that tones still ask for; the distance in decibels does.
    """

    band: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("band", _band_pass()[:, None])
        for size, _ in _WINDOWS_AND_HOPS:
            window = torch.hann_window(size + 2, periodic=False)[1:-1]
            self.register_buffer(f"window{size}", (window / window.sum())[None, None])

    def forward(self, decoded: Tensor, wave: Tensor) -> Tensor:
        """Compare sounds.

        Args:
            decoded: [B, 1, samples].
            wave: the original, likewise.

        Returns:
            [B]: about 0 for the same clicks at the same times, 1 for none at all. Where the
            original has none, what `decoded` has of them counts against a quarter of a soft one.
        """
        ours, theirs = self._power(decoded), self._power(wave)
        errors = []
        for size, hop in _WINDOWS_AND_HOPS:
            window = self.get_buffer(f"window{size}")
            found, wanted = (_amplitude(power, window, hop) for power in (ours, theirs))
            errors.append(0.5 * (_relative(found, wanted, hop) + _in_decibels(found, wanted)))
        return torch.stack(errors).mean(0)

    def _power(self, wave: Tensor) -> Tensor:
        """Squared envelope of the band, 2 ms shorter at each end: no tone begins at once there."""
        return F.conv1d(wave, self.band).square().sum(1, keepdim=True)


def _amplitude(power: Tensor, window: Tensor, hop: int) -> Tensor:
    margin = window.shape[-1] // 2
    smooth = F.conv1d(F.pad(power, (margin, margin)), window, stride=hop)
    return (smooth + _LEAST).sqrt() - math.sqrt(_LEAST)


def _relative(found: Tensor, wanted: Tensor, hop: int) -> Tensor:
    """Root of the squared distance over the squares of what is wanted, [B]."""
    distance, level = (hop * x.square().sum((1, 2)) for x in (found - wanted, wanted))
    return (distance / (level + _SILENT) + _FLAT).sqrt() - math.sqrt(_FLAT)


def _in_decibels(found: Tensor, wanted: Tensor) -> Tensor:
    """Distance of levels where there are clicks, by their squares; that of silence is 1, [B]."""
    heard = wanted.square()
    ratio = (found + _FAINT).log() - (wanted + _FAINT).log()
    whole = (heard * (wanted / _FAINT).log1p()).sum((1, 2))
    return (heard * ratio.abs()).sum((1, 2)) / (whole + _FAINT)


def _band_pass() -> Tensor:
    """Taps of the real and the imaginary half of a filter for positive frequencies, [2, taps]."""
    low, high = CLICK_BAND_HZ[0] + _INSIDE_HZ, CLICK_BAND_HZ[1] - _INSIDE_HZ
    width, centre = (high - low) / AUDIO_SAMPLE_RATE_HZ, (high + low) / 2
    times = torch.arange(_TAPS, dtype=torch.float64) - _TAPS // 2
    window = torch.hann_window(_TAPS + 2, periodic=False, dtype=torch.float64)[1:-1]
    taps = 2 * width * torch.special.sinc(width * times) * window
    turn = 2 * math.pi * centre / AUDIO_SAMPLE_RATE_HZ * times
    return torch.stack((taps * torch.cos(turn), taps * torch.sin(turn))).float()
