"""Each check passes on a good file and fails on a file that is wrong in just its way."""

import io
import struct
from dataclasses import replace

import av
import numpy as np
import pytest
from media_samples import Recipe, moving_clip, product_file, stereo_wave, write

from minimax_h3.media import probe
from minimax_h3.media.check import (
    Expectation,
    Status,
    check_mp4,
    frame_hashes,
    psnr_db,
    sample_hash,
)

pytestmark = pytest.mark.filterwarnings("error")
EXPECTED = Expectation(width=64, height=64, num_frames=124)
METADATA = {
    "fps": 24,
    "num_frames": 124,
    "duration_s": 124 / 24,
    "audio_s": 5.175,
    "media_s": 5.175,
}


def test_a_plain_writers_good_file_passes(tmp_path):
    path = tmp_path / "good.mp4"
    write(Recipe(), path)
    report = check_mp4(path, EXPECTED)
    assert report.passed, str(report)
    statuses = [result.status for result in report.results]
    assert statuses == [Status.PASS] * 11 + [Status.NOT_APPLICABLE] * 4
    assert [result.number for result in report.results] == list(range(1, 16))


def test_no_expectation_checks_the_file_against_itself(good_file):
    assert check_mp4(good_file).passed


def with_frames(change) -> np.ndarray:
    frames = moving_clip(124)
    change(frames)
    return frames


def blacken(frames: np.ndarray) -> None:
    frames[40:57] = 0


WRONG_FILES = {
    "moov last": (Recipe(faststart=False), {"container"}),
    "no audio": (
        Recipe(wave=None),
        {"streams", "audio_format", "sync", "start_times", "decode"} | {"sound"},
    ),
    "two videos": (Recipe(video_streams=2), {"streams"}),
    "wrong size": (Recipe(frames=moving_clip(124, 64, 96)), {"video_format"}),
    "wrong codec": (Recipe(video_codec="mpeg4"), {"video_format"}),
    "wrong pixels": (Recipe(pixel_format="yuv444p"), {"video_format"}),
    "wrong fps": (Recipe(fps=25), {"video_format", "sync"}),
    "a frame short": (Recipe(frames=moving_clip(123)), {"frame_count", "sync"}),
    "short audio": (Recipe(wave=stereo_wave(160_000)), {"audio_format", "sync"}),
    "long audio": (Recipe(wave=stereo_wave(166_400)), {"audio_format", "sync"}),
    "mono": (Recipe(wave=stereo_wave(165_600)[:1]), {"audio_format", "sound"}),
    "wrong audio rate": (
        Recipe(wave=stereo_wave(228_218), rate_hz=44_100),
        {"audio_format"},
    ),
    "wrong audio codec": (Recipe(audio_codec="mp3"), {"audio_format"}),
    "late audio": (Recipe(audio_delay_samples=3200), {"start_times", "audio_format", "sync"}),
    "no colour tags": (Recipe(tagged=False), {"colour_tags"}),
    "constant": (Recipe(frames=np.full((124, 64, 64, 3), 90, np.uint8)), {"picture"}),
    "black clip": (Recipe(frames=with_frames(blacken)), {"picture"}),
    "white end": (
        Recipe(frames=with_frames(lambda frames: frames[-5:].fill(255))),
        {"picture"},
    ),
    "frozen": (Recipe(frames=np.repeat(moving_clip(1), 124, axis=0)), {"picture"}),
    "silent": (Recipe(wave=np.zeros((2, 165_600), np.float32)), {"sound"}),
    "left is right": (Recipe(wave=stereo_wave(165_600, right_hz=440)), {"sound"}),
    "never clamped": (Recipe(wave=stereo_wave(165_600) * 6), {"sound"}),
}


@pytest.mark.parametrize("name", WRONG_FILES)
def test_a_wrong_file_fails_just_the_checks_that_it_breaks(name, tmp_path):
    recipe, broken = WRONG_FILES[name]
    report = check_mp4(write(recipe, tmp_path / "wrong.mp4"), EXPECTED)
    assert set(report.failed) == broken, str(report)
    assert all(result.detail for result in report.results)


def test_details_say_what_was_seen(tmp_path):
    short = write(Recipe(wave=stereo_wave(160_000)), tmp_path / "short.mp4")
    assert "lasts 5.0 s, not 5.175 s; 160768 samples decoded, not 165600 to 166623" in str(
        check_mp4(short, EXPECTED)
    )
    report = check_mp4(write(Recipe(fps=25), tmp_path / "wrong.mp4"), EXPECTED)
    assert "25 frames per second, not 24" in str(report)
    blackened = check_mp4(
        write(Recipe(frames=with_frames(blacken)), tmp_path / "black.mp4"), EXPECTED
    )
    assert "17 black or white frames in a row" in str(blackened)


def test_keyframes(good_file):
    clip = moving_clip(124)
    near = replace(EXPECTED, first_keyframe=clip[0], last_keyframe=clip[-1])
    assert check_mp4(good_file, near).passed
    assert check_mp4(good_file, replace(EXPECTED, last_keyframe=clip[-1])).passed
    for wrong in (
        replace(near, first_keyframe=clip[60]),
        replace(near, last_keyframe=clip[0]),
        replace(near, min_keyframe_psnr_db=90.0),
        replace(near, first_keyframe=clip[0, :32]),
    ):
        assert check_mp4(good_file, wrong).failed == ("keyframes",)


def test_metadata(good_file):
    assert check_mp4(good_file, replace(EXPECTED, metadata=METADATA)).passed
    wrong_values = {"fps": 25, "num_frames": 120, "duration_s": 5.0, "audio_s": 5.0}
    for name, value in wrong_values.items():
        wrong = replace(EXPECTED, metadata=METADATA | {name: value})
        report = check_mp4(good_file, wrong)
        assert report.failed == ("metadata",)
        assert f"{name} {value}" in str(report)
    assert check_mp4(good_file, replace(EXPECTED, metadata={})).failed == ("metadata",)
    assert check_mp4(good_file, replace(EXPECTED, metadata=METADATA | {"fps": "24"})).failed


@pytest.mark.parametrize("name", ["repeat", "cached"])
def test_another_run_must_be_identical(good_file, name, tmp_path):
    again, path = product_file(124), tmp_path / "again.mp4"
    path.write_bytes(again)
    assert check_mp4(good_file, replace(EXPECTED, **{name: path})).passed
    other = write(Recipe(), tmp_path / "other.mp4")
    for different in (other, good_file[:-9000], b"", tmp_path / "absent.mp4"):
        report = check_mp4(good_file, replace(EXPECTED, **{name: different}))
        assert report.failed == (name,)


def test_two_unreadable_files_are_no_repetition():
    assert not check_mp4(b"", Expectation(repeat=b"")).passed


def test_hashes_tell_clips_apart(good_file):
    hashes = frame_hashes(good_file)
    assert len(hashes) == len(set(hashes)) == 124
    assert hashes == frame_hashes(product_file(124))
    assert sample_hash(good_file) == sample_hash(product_file(124))
    assert sample_hash(good_file) != sample_hash(product_file(107))
    for function in (frame_hashes, sample_hash):
        with pytest.raises(ValueError, match="media file"):
            function(good_file[:5000])


def test_psnr():
    image = moving_clip(1)[0]
    assert psnr_db(image, image) == float("inf")
    zeros = np.zeros((4, 4, 3), np.uint8)
    assert psnr_db(zeros, zeros + 255) == pytest.approx(0.0)
    assert psnr_db(zeros, zeros + 10) == pytest.approx(20 * np.log10(25.5))


@pytest.mark.parametrize("keep", [0, 3, 40, 1000, 5000, 20_000, -1000, -1])
def test_truncated_files_fail(good_file, keep):
    report = check_mp4(good_file[:keep], EXPECTED)
    if report.facts.problem:
        assert report.failed == ("container",)
        return
    assert "container" in report.failed
    if keep != -1:
        assert "decode" in report.failed or "frame_count" in report.failed


def test_a_damaged_picture_fails_just_the_decode(good_file):
    with av.open(io.BytesIO(good_file)) as container:
        second = [packet for packet in container.demux(video=0) if packet.size][1]
    damaged = bytearray(good_file)
    middle = second.pos + second.size // 2
    damaged[middle : second.pos + second.size] = bytes(second.size - second.size // 2)
    report = check_mp4(bytes(damaged), EXPECTED)
    assert report.failed == ("decode",), str(report)
    assert "is damaged" in str(report)


def test_a_file_beyond_the_limits_is_not_decoded_for_ever(good_file, monkeypatch):
    for name in ("_MAX_FRAMES", "_MAX_SAMPLES", "_MAX_PIXELS"):
        with monkeypatch.context() as patch:
            patch.setattr(probe, name, 100)
            report = check_mp4(good_file, EXPECTED)
        assert "decode" in report.failed
        assert "100" in report.results[8].detail


def test_damaged_payload_fails_the_decode(good_file):
    damaged = bytearray(good_file)
    begin = good_file.index(b"mdat") + 2000
    damaged[begin : begin + 20_000] = bytes(20_000)
    report = check_mp4(bytes(damaged), EXPECTED)
    assert "decode" in report.failed, str(report)


@pytest.mark.parametrize(
    "source",
    ["/no/such/file.mp4", "\0", "", ".", b"hello", bytes(5000), struct.pack(">I4s", 8, b"moov")],
)
def test_what_is_no_media_file_fails_once(source):
    report = check_mp4(source, EXPECTED)
    assert len(report.results) == 15
    assert report.failed == ("container",)


def test_random_damage_never_raises(good_file):
    rng = np.random.default_rng(0)
    for trial in range(120):
        damaged = bytearray(good_file)
        reach = len(damaged) if trial % 2 else 6000  # the index, or the whole file
        for _ in range(int(rng.integers(1, 30))):
            damaged[int(rng.integers(0, reach))] = int(rng.integers(0, 256))
        if trial % 3 == 0:
            del damaged[int(rng.integers(0, len(damaged))) :]
        assert len(check_mp4(bytes(damaged), EXPECTED).results) == 15
