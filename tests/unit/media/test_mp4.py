import io
import tempfile

import av
import numpy as np
import pytest
from media_samples import RATE_HZ, moving_clip, product_file, stereo_wave

from minimax_h3.core.errors import H3Error
from minimax_h3.media.check import MAX_DECODED_PEAK, Expectation, check_mp4
from minimax_h3.media.h264 import VideoStreamEncoder
from minimax_h3.media.mp4 import mux


def silent(frames: int = 12) -> bytes:
    encoder = VideoStreamEncoder(64, 64)
    encoder.push(moving_clip(frames))
    return encoder.finish()


def decoded_sound(data: bytes) -> np.ndarray:
    with av.open(io.BytesIO(data)) as container:
        return np.concatenate([frame.to_ndarray() for frame in container.decode(audio=0)], axis=1)


def packets(data: bytes) -> list[bytes]:
    with av.open(io.BytesIO(data)) as container:
        return [bytes(packet) for packet in container.demux(video=0) if packet.size]


def below_db(wave: np.ndarray, error: np.ndarray) -> float:
    return 10 * np.log10(np.sum(wave**2.0) / np.sum(error**2.0))


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("frames", [107, 124, 362])
def test_all_checks_pass_on_a_moving_clip_with_sound(frames):
    data = product_file(frames)
    metadata = {"fps": 24, "num_frames": frames, "duration_s": round(frames / 24, 6)}
    expectation = Expectation(
        width=64,
        height=64,
        num_frames=frames,
        first_keyframe=moving_clip(frames)[0],
        last_keyframe=moving_clip(frames)[-1],
        metadata=metadata,
        repeat=product_file(frames),
        cached=data,
    )
    report = check_mp4(data, expectation)
    assert report.passed, str(report)
    assert [result.status.value for result in report.results] == ["pass"] * 15


def test_equal_inputs_give_equal_bytes():
    stream, wave = silent(), stereo_wave(16_000)
    assert len({mux(stream, wave) for _ in range(3)}) == 1


def test_video_packets_are_copied_unchanged():
    stream = silent(124)
    assert packets(mux(stream, stereo_wave(165_600))) == packets(stream)


def test_the_sound_keeps_time_level_and_sides():
    wave = stereo_wave(165_600)
    shown = decoded_sound(mux(silent(124), wave))[:, : wave.shape[1]]
    assert below_db(wave, shown - wave) > 25, "a shift by one sample would cost 20 dB"
    assert below_db(wave, shown[::-1] - wave) < 0, "left and right must not be exchanged"


@pytest.mark.parametrize("hertz", [110, 440, 700])
def test_a_clip_that_starts_in_mid_sound_starts_without_a_click(hertz):
    wave = stereo_wave(RATE_HZ, left_hz=hertz, right_hz=1.26 * hertz)
    start = slice(0, 1024)
    error = decoded_sound(mux(silent(), wave))[:, : wave.shape[1]] - wave
    assert below_db(wave[:, start], error[:, start]) > 38


def test_a_sound_at_full_scale_stays_near_it():
    noise = np.random.default_rng(0).standard_normal((2, 64_000)).astype(np.float32)
    shown = decoded_sound(mux(silent(), np.clip(noise, -1, 1)))
    assert np.isfinite(shown).all()
    assert np.abs(shown).max() < MAX_DECODED_PEAK


def test_a_last_short_audio_frame_is_kept():
    wave = stereo_wave(32_000 + 7)
    data = mux(silent(), wave)
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.audio[0]
        # MP4 states lengths in whole milliseconds; real lengths are multiples of 25 ms.
        assert float(stream.duration * stream.time_base) == pytest.approx(1.0002, abs=1e-3)
    shown = decoded_sound(data)[:, 31_000:32_007]
    assert below_db(wave[:, 31_000:], shown - wave[:, 31_000:]) > 20


def test_nothing_of_the_machine_is_in_the_file(scratch):
    data = mux(silent(), stereo_wave(16_000))
    for word in (str(scratch), "h3-mux", "Lavf", "Lavc"):
        assert word.encode() not in data
    with av.open(io.BytesIO(data)) as container:
        assert "creation_time" not in container.metadata
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("stream", [b"", b"\0" * 1000, silent()[:200]])
def test_an_unreadable_stream_is_an_error_and_leaves_nothing_behind(scratch, stream):
    with pytest.raises(H3Error, match="muxer: "):
        mux(stream, stereo_wave(16_000))
    assert not list(scratch.iterdir())


@pytest.mark.parametrize(
    ("wave", "message"),
    [
        (np.zeros((1, 1000), np.float32), r"shape \(1, 1000\)"),
        (np.zeros((2, 0), np.float32), r"shape \(2, 0\)"),
        (np.zeros(1000, np.float32), r"shape \(1000,\)"),
        (np.full((2, 1000), np.nan, np.float32), "not finite"),
    ],
)
def test_wrong_sound_is_refused(wave, message):
    with pytest.raises(ValueError, match=message):
        mux(silent(), wave)
