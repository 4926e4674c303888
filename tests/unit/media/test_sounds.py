from fractions import Fraction

import numpy as np
import pytest
from source_samples import Clip, sound_file, tones, video, wav

from minimax_h3.core.conditions import AUDIO
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.media.facts import inspect
from minimax_h3.media.kinds import identify
from minimax_h3.media.sounds import read_sound

NAME = "references[3]"


def read(data: bytes, seconds: float = 15.0, start: Fraction | None = None) -> np.ndarray:
    return read_sound(data, identify(data, NAME), NAME, start, seconds)


def cut(data: bytes, kept: float) -> bytes:
    return data[: int(len(data) * kept)]


FILES = {
    "WAV": lambda wave, rate, layout: sound_file(wave, "wav", "pcm_s16le", rate, layout),
    "float WAV": lambda wave, rate, layout: sound_file(wave, "wav", "pcm_f32le", rate, layout),
    "MP3": lambda wave, rate, layout: sound_file(wave, "mp3", "libmp3lame", rate, layout),
    "AAC": lambda wave, rate, layout: sound_file(wave, "adts", "aac", rate, layout),
    "AAC in MP4": lambda wave, rate, layout: sound_file(wave, "ipod", "aac", rate, layout),
}


@pytest.mark.parametrize("kind", FILES)
def test_waves_equal_the_reference_pipeline(kind, tmp_path):
    """At 32 kHz, where the reference needs no resampler."""
    from diffusers.modular_pipelines.minimax_h3.before_encoder import MiniMaxH3Ref2VASetupStep
    from diffusers.modular_pipelines.minimax_h3.references import MiniMaxH3AudioReference

    for layout, channels in (("stereo", 2), ("mono", 1)):
        data = FILES[kind](tones(5.0, channels=channels), 32_000, layout)
        path = tmp_path / "sound"
        path.write_bytes(data)
        decoded = MiniMaxH3AudioReference.from_file(path)
        expected = MiniMaxH3Ref2VASetupStep._normalize_audio_condition(
            decoded.audio, decoded.sample_rate, 32_000, 107 / 24
        )
        made = read(data, 107 / 24)
        assert made.shape == (2, int(107 / 24 * 32_000))
        np.testing.assert_allclose(made, expected.numpy(), atol=1e-7)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("rate", [44_100, 48_000])
def test_other_rates_become_32_khz(kind, rate):
    data = FILES[kind](tones(3.0, rate), rate, "stereo")
    facts = inspect(data, NAME)
    assert facts.kind == AUDIO
    assert facts.sound.rate_hz == rate
    made = read(data)
    assert made.dtype == np.float32
    assert made.shape == (2, -(-facts.sound.samples * 32_000 // rate))
    spectrum = np.abs(np.fft.rfft(made[0][:32_000] * np.hanning(32_000)))
    source = np.abs(np.fft.rfft(tones(1.0, rate)[0] * np.hanning(rate)))
    assert abs(int(spectrum.argmax()) - int(source[:16_000].argmax())) <= 1


def test_mono_is_doubled_at_its_own_level():
    wave = tones(2.5, channels=1)
    made = read(sound_file(wave, "wav", "pcm_f32le", 32_000, "mono"))
    np.testing.assert_array_equal(made, np.repeat(wave, 2, axis=0))


def test_more_channels_are_mixed_down():
    wave = np.zeros((6, 32_000 * 3), np.float32)
    wave[2] = tones(3.0)[0]  # the centre reaches both sides alike
    made = read(sound_file(wave, "wav", "pcm_f32le", 32_000, "5.1"))
    assert made.shape[0] == 2
    assert np.abs(made).max() > 0.05
    np.testing.assert_allclose(made[0], made[1], atol=1e-6)


def test_a_silent_track_is_kept_as_silence():
    facts = inspect(video(Clip(frames=60, sound=np.zeros((2, 80_000), np.float32))), NAME)
    assert facts.has_sound
    silence = read(sound_file(np.zeros((2, 80_000), np.float32), "wav", "pcm_s16le"))
    assert not silence.any()


def test_start_skips_and_a_late_sound_is_preceded_by_silence():
    wave = tones(3.0)
    data = sound_file(wave, "wav", "pcm_f32le")
    np.testing.assert_array_equal(read(data, start=Fraction(1)), wave[:, 32_000:])
    late = read(data, start=Fraction(-1, 2))
    assert not late[:, :16_000].any()
    np.testing.assert_array_equal(late[:, 16_000:], wave)
    assert read(data, seconds=1.0, start=Fraction(-1, 2)).shape == (2, 32_000)


def test_a_sound_is_cut_at_its_own_rate():
    made = read(sound_file(tones(6.0, 44_100), "wav", "pcm_f32le", 44_100), 107 / 24)
    assert made.shape[1] == -(-int(107 / 24 * 44_100) * 32_000 // 44_100)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (lambda: sound_file(tones(3.0), "wav", "adpcm_ms"), "sound codec adpcm_ms is not legal"),
        (lambda: wav(1.0), "1 s of sound"),
        (lambda: wav(16.0), "s of sound"),
        (lambda: wav(3.0, rate=4_000), "4,000 Hz"),
        (lambda: wav(3.0)[:100_000], "damaged or truncated WAV"),
        (
            lambda: sound_file(np.full((2, 96_000), np.nan, np.float32), "wav", "pcm_f32le"),
            "finite",
        ),
        (lambda: sound_file(np.full((2, 96_000), 1e30, np.float32), "wav", "pcm_f32le"), "beyond"),
        (lambda: cut(sound_file(tones(6.0), "mp3", "libmp3lame"), 0.6), "damaged or truncated MP3"),
        (lambda: cut(sound_file(tones(6.0), "ipod", "aac"), 0.6), "damaged or truncated MP4"),
        (lambda: wav(3.0)[:44], "damaged or truncated WAV"),
        (
            lambda: video(
                Clip(frames=60, sound=tones(2.5, 48_000), sound_rate=48_000, sound_codec="libopus")
            ),
            "sound codec opus is not legal",
        ),
    ],
)
def test_illegal_sounds_are_refused_by_name(data, named):
    with pytest.raises(InvalidRequestError, match=rf"references\[3\]: .*{named}"):
        inspect(data(), NAME)


def test_a_wav_of_unknown_length_is_read_to_its_end():
    data = bytearray(wav(3.0))
    data[4:8] = b"\xff\xff\xff\xff"
    where = bytes(data).index(b"data")
    data[where + 4 : where + 8] = b"\xff\xff\xff\xff"
    assert inspect(bytes(data), NAME).seconds == pytest.approx(3.0)
