import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimax_h3.media.resample import resample

# Of torchaudio 2.11.1 `transforms.Resample(rate, 32000)` on `sawtooth()`: the length, and the
# outputs 0, 1, length // 3, length // 2 and length - 1.
TORCHAUDIO = {
    8000: (8000, (-0.9994495, -1.0539424, 0.1797123, -0.3063628, -0.1862686)),
    11025: (5805, (-0.9994495, -1.0283267, -0.0659101, -0.2447436, -0.2545297)),
    16000: (4000, (-0.9994495, -0.9301790, 0.1797123, -0.3063628, -0.3607636)),
    22050: (2903, (-0.9994495, -0.7262086, 0.4825862, -0.2447436, -0.2545297)),
    24000: (2667, (-0.9994495, -0.6442596, -0.1577767, -0.1777862, -0.3607636)),
    44100: (1452, (-0.8937113, 0.1932433, 0.2077513, 0.0458193, -0.3206280)),
    48000: (1334, (-0.7999692, 0.1501914, 0.6365873, 0.0500254, -0.2478040)),
    88200: (726, (-0.3711437, -0.1417203, 0.2015731, 0.0712563, 0.1799823)),
    96000: (667, (-0.3386466, -0.1565468, 0.3032860, 0.2832767, 0.1687850)),
    192000: (334, (-0.2194293, 0.0287636, 0.1368830, 0.0841618, 0.0951139)),
}


def sawtooth(samples: int = 2000) -> np.ndarray:
    return (((np.arange(samples) * 37) % 101 - 50) / 50).astype(np.float32)[None]


@pytest.mark.parametrize("rate", TORCHAUDIO)
def test_values_are_those_of_the_reference_resampler(rate):
    length, expected = TORCHAUDIO[rate]
    made = resample(sawtooth(), rate, 32_000)[0]
    assert len(made) == length
    picked = made[[0, 1, length // 3, length // 2, length - 1]]
    np.testing.assert_allclose(picked, expected, atol=2e-6)


@given(rate=st.sampled_from([8000, 44_100, 48_000, 12_345]), samples=st.integers(1, 60))
def test_the_definition_summed_sample_by_sample(rate, samples):
    wave = sawtooth(samples)[0].astype(float)
    made = resample(sawtooth(samples), rate, 32_000)[0]
    cutoff = 0.99 * min(rate, 32_000)
    assert len(made) == math.ceil(samples * 32_000 / rate)
    for output, value in enumerate(made):
        total = 0.0
        for index, sample in enumerate(wave):
            time = (index / rate - output / 32_000) * cutoff
            if abs(time) < 6:
                total += sample * np.sinc(time) * math.cos(time * math.pi / 12) ** 2
        assert value == pytest.approx(total * cutoff / rate, abs=1e-3)


def test_channels_are_independent_and_equal_rates_change_nothing():
    wave = np.concatenate([sawtooth(), -sawtooth()])
    made = resample(wave, 44_100, 32_000)
    np.testing.assert_array_equal(made[0], -made[1])
    assert resample(wave, 32_000, 32_000) is wave


def test_a_tone_keeps_its_pitch_and_level():
    rate = 44_100
    tone = np.sin(2 * np.pi * 1000 * np.arange(rate) / rate).astype(np.float32)[None]
    made = resample(tone, rate, 32_000)[0]
    expected = np.sin(2 * np.pi * 1000 * np.arange(32_000) / 32_000)
    assert np.abs(made - expected)[100:-100].max() < 2e-3
