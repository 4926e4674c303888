import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from source_samples import Clip, encoded, number, picture, tones, video, wav

from minimax_h3.core.conditions import AUDIO, DRIVING_AUDIO, IMAGE, KEYFRAME, VIDEO
from minimax_h3.core.constants import AUDIO_HOP_SAMPLES
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.media import prepare
from minimax_h3.media.facts import inspect
from minimax_h3.media.prepare import (
    load_condition,
    plan_keyframe,
    plan_reference,
    present_all,
    sample_presented,
)


def planned(data: bytes, target: int = 124, start: float = 0.0, **options: bool):
    return plan_reference(inspect(data, "references[0]"), 0, target, start, **options)


def loaded(condition, data: bytes, target: int = 124):
    return load_condition(condition, data, SimpleNamespace(num_frames=target))


def test_a_keyframe_fills_the_canvas():
    data = encoded(picture(90, 70))
    facts = inspect(data, "keyframes[1]")
    condition = plan_keyframe(facts, 1, 128, 96, -1)
    assert (condition.kind, condition.frame_index, condition.video_rows) == (KEYFRAME, -1, 12)
    (frame,) = loaded(condition, data).frames
    assert frame.shape == (96, 128, 3)
    np.testing.assert_array_equal(frame, sample_presented(condition, data))
    stretched = plan_keyframe(facts, 0, 128, 96, 0)
    assert not np.array_equal(sample_presented(stretched, data), frame)


@pytest.mark.parametrize("data", [video(Clip(frames=48)), wav(3.0)])
def test_only_pictures_are_keyframes(data):
    with pytest.raises(InvalidRequestError, match=r"keyframes\[0\]: .* legal: a picture"):
        plan_keyframe(inspect(data, "keyframes[0]"), 0, 128, 96, 0)


def test_a_reference_picture_has_rows_of_its_own_size():
    data = encoded(picture(80, 48))
    condition = planned(data)
    assert condition.kind == IMAGE
    assert (condition.width, condition.height) == (3424, 2048)
    assert condition.video_rows == 6848
    assert sample_presented(condition, data).shape == (2048, 3424, 3)


@pytest.mark.parametrize(("target", "start"), [(107, 0.5), (124, 0.0), (362, 0.5)])
def test_what_is_loaded_of_a_video_is_what_was_planned(target, start):
    clip = Clip(frames=162, fps=30, sound=tones(5.4, 44_100), sound_rate=44_100)
    data = video(clip)
    condition = planned(data, target, start)
    shown = min(target, math.floor((5.4 - start) * 24 + 0.5))
    assert condition.kind == VIDEO
    assert condition.presented_frames == shown
    assert condition.num_frames == (shown - 5) // 17 * 17 + 5
    media = loaded(condition, data, target)
    frames = list(media.frames)
    assert len(frames) == condition.num_frames
    assert frames[0].shape == (condition.height, condition.width, 3)
    assert number(frames[0]) == round(start * 30)
    assert media.waveform.dtype == np.float32
    assert -(-media.waveform.shape[1] // AUDIO_HOP_SAMPLES) == condition.audio_latents
    presented = sample_presented(condition, data)
    assert len(presented) == -(-shown // 12)
    np.testing.assert_array_equal(presented[1], frames[12])


@pytest.mark.parametrize("delay", [-4_000, 0, 16_000])
def test_a_soundtrack_starts_with_the_picture(delay):
    """The click at second 1 of the sound lands at second 1 + delay of the picture's clock."""
    wave = np.zeros((2, 96_000), np.float32)
    wave[:, 32_000:32_010] = 0.9
    clip = Clip(frames=72, form="mov", sound=wave, sound_codec="pcm_s16le", sound_delay=delay)
    data = video(clip)
    click = int(np.abs(loaded(planned(data), data).waveform[0]).argmax())
    assert abs(click - (32_000 + delay)) <= 10


@pytest.mark.parametrize("rate", [8_000, 22_050, 32_000, 44_100, 48_000])
@pytest.mark.parametrize("driving", [False, True])
def test_what_is_loaded_of_a_sound_is_what_was_planned(rate, driving):
    for seconds, target in ((2.0, 124), (3.3, 124), (6.0, 107), (15.0, 362)):
        data = wav(seconds, rate)
        condition = planned(data, target, driving=driving)
        media = loaded(condition, data, target)
        assert condition.kind == (DRIVING_AUDIO if driving else AUDIO)
        assert list(media.frames) == []
        assert -(-media.waveform.shape[1] // AUDIO_HOP_SAMPLES) == condition.audio_latents
        assert condition.audio_latents <= 600
        assert condition.audio_rows == (0 if driving else 2 * condition.audio_latents)


def test_two_seconds_must_be_left_behind_the_start():
    data = video(Clip(frames=96))
    assert planned(data, start=2.0).presented_frames == 48
    with pytest.raises(InvalidRequestError, match=r"references\[0\]: .*start.*1.5 s of video"):
        planned(data, start=2.5)


def test_a_soundtrack_that_ends_before_the_start_is_refused():
    data = video(Clip(frames=120, form="mov", sound=tones(1.0), sound_codec="pcm_s16le"))
    with pytest.raises(InvalidRequestError, match=r"references\[0\]: its soundtrack ends before 2"):
        planned(data, start=2.0)


def test_other_bytes_than_the_planned_ones_are_refused():
    data, other = encoded(picture(seed=1)), encoded(picture(seed=2))
    with pytest.raises(InvalidRequestError, match=r"references\[0\]: changed since"):
        loaded(planned(data), other)


def test_pictures_are_presented_in_order_whatever_takes_longer():
    files = [encoded(picture(900, 700)), wav(3.0), video(Clip(frames=48)), encoded(picture(40, 40))]
    conditions = [planned(data) for data in files]
    shown = list(present_all(conditions, files))
    assert [frames.ndim for frames in shown] == [3, 4, 3]
    np.testing.assert_array_equal(shown[2], sample_presented(conditions[3], files[3]))


def test_damage_behind_the_first_frame_is_refused_when_the_frames_are_read():
    data = bytearray(video(Clip(frames=96, width=320, height=240)))
    where = bytes(data).index(b"mdat") + 3_000
    data[where : where + 300] = bytes(300)
    condition = planned(bytes(data))
    with pytest.raises(InvalidRequestError, match=r"references\[0\]: damaged or truncated MP4"):
        list(loaded(condition, bytes(data)).frames)


def test_the_frames_of_a_clip_are_never_held_together():
    """A generator: after the first frame, at most a handful have been made."""
    data = video(Clip(frames=120))
    frames = loaded(planned(data), data).frames
    first = next(frames)
    assert first.shape[2] == 3
    frames.close()


@pytest.mark.parametrize(
    ("shown", "encoded"), [(22, 22), (23, 22), (38, 22), (39, 39), (56, 56), (120, 107), (362, 362)]
)
def test_frames_of_a_reference_video_snap_down(shown, encoded):
    assert prepare._aligned_down(shown) == encoded


def test_spans_are_exact_fractions():
    data = video(Clip(frames=90, fps=Fraction(30_000, 1001)))
    assert inspect(data, "references[0]").video.timeline.span == Fraction(90 * 1001, 30_000)
