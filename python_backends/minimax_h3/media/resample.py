"""Sample rate conversion by a windowed sinc, equal to the resampler of the reference pipeline."""

import math

import numpy as np
from numpy.typing import NDArray

_ZERO_CROSSINGS = 6  # of the sinc, each side
_ROLLOFF = 0.99  # cut-off as a share of the lower Nyquist frequency


def resample(wave: NDArray[np.float32], rate_hz: int, target_hz: int) -> NDArray[np.float32]:
    """Convert the sample rate.

    Args:
        wave: fp32 [channels, samples].
        rate_hz: its sample rate.
        target_hz: the wanted sample rate.

    Returns:
        fp32 [channels, ceil(samples * target_hz / rate_hz)]; the same array for equal rates.

    Source: a Hann-windowed sinc of six zero crossings with roll-off 0.99, the defaults of
    torchaudio's `Resample`, which the reference pipeline applies once.
    """
    if rate_hz == target_hz:
        return wave
    common = math.gcd(rate_hz, target_hz)
    step, phases = rate_hz // common, target_hz // common  # input samples per `phases` outputs
    nearest, weights, reach = _filters(step, phases)
    count = -(-wave.shape[1] * phases // step)
    round_, phase = np.divmod(np.arange(count), phases)
    start = round_ * step + nearest[phase]
    padded = np.pad(wave, ((0, 0), (reach, reach + 1))).astype(np.float64)
    made = np.zeros((len(wave), count))
    for tap in range(weights.shape[1]):
        made += padded[:, start + tap] * weights[phase, tap]
    return made.astype(np.float32)


def _filters(step: int, phases: int) -> tuple[NDArray[np.int64], NDArray[np.float64], int]:
    """The filter of each output in a round of `phases` outputs, which takes `step` inputs.

    Returns:
        The last input sample that is not behind each output, int64 [phases]; the filters, fp64
        [phases, 2 * reach + 2]; the reach in input samples. Tap `t` belongs to the input sample
        `nearest + t - reach`.
    """
    cutoff = min(step, phases) * _ROLLOFF
    reach = math.ceil(_ZERO_CROSSINGS * step / cutoff)
    nearest = np.arange(phases) * step // phases
    sample = nearest[:, None] + np.arange(-reach, reach + 2)[None]
    # The reference rounds the time of an output to single precision, 4e-5 of the result.
    output_time = (np.arange(phases, dtype=np.float32) / np.float32(phases)).astype(np.float64)
    time = (sample / step - output_time[:, None]) * cutoff
    time = np.clip(time, -_ZERO_CROSSINGS, _ZERO_CROSSINGS)
    window = np.cos(time * math.pi / (2 * _ZERO_CROSSINGS)) ** 2
    return nearest, np.sinc(time) * window * (cutoff / step), reach
