import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from media_samples import moving_clip
from source_samples import Clip, number, tones, video

from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.media.facts import inspect
from minimax_h3.media.kinds import identify
from minimax_h3.media.videos import VideoWindow, prepare_video, presented_frames, video_canvas

NAME = "references[0]"
STORED = (96, 64)  # of a `Clip`: no time is spent on scaling


def prepared(
    data: bytes, target: int, start: float = 0.0, stride: int = 1, size: tuple[int, int] = ()
) -> np.ndarray:
    """The frames of a file, on their own canvas unless a size is given."""
    measure = inspect(data, NAME).video
    count = presented_frames(measure.timeline.span, Fraction(start), target)
    window = VideoWindow(*(size or video_canvas(measure)), Fraction(start), count, stride)
    return np.stack(list(prepare_video(data, identify(data, NAME), NAME, window)))


def by_the_reference(data: bytes, target: int, path) -> np.ndarray:
    """The same by diffusers: decode the file, then its normalisation of a reference video."""
    from diffusers.modular_pipelines.minimax_h3.before_encoder import MiniMaxH3Ref2VASetupStep
    from diffusers.modular_pipelines.minimax_h3.references import MiniMaxH3VideoReference

    path.write_bytes(data)
    decoded = MiniMaxH3VideoReference.from_file(path)
    return MiniMaxH3Ref2VASetupStep._normalize_video_condition(
        decoded.frames, float(decoded.fps), target, 32, 768, 768 * 1344, 24.0
    )


@pytest.mark.parametrize("fps", [12, 24, 25, Fraction(30_000, 1001), 30, 60])
def test_frames_equal_the_reference_pipeline(fps, tmp_path):
    data = video(Clip(frames=math.ceil(2 * fps), fps=fps))
    expected = by_the_reference(data, 25, tmp_path / "clip.mp4")
    np.testing.assert_array_equal(prepared(data, 25), expected)


@pytest.mark.parametrize("turn", [90, -90, 180])
def test_a_rotated_phone_video_is_upright(turn, tmp_path):
    data = video(Clip(frames=48, turn=turn))
    facts = inspect(data, NAME)
    assert (facts.width, facts.height) == ((96, 64) if turn == 180 else (64, 96))
    made = prepared(data, 5)
    np.testing.assert_array_equal(made, by_the_reference(data, 5, tmp_path / "clip.mp4"))
    assert [number(np.rot90(frame, turn // 90)) for frame in made] == list(range(5))


@pytest.mark.parametrize(
    ("size", "canvas"),
    [
        ((96, 64), (1152, 768)),
        ((98, 66), (1152, 768)),
        ((64, 128), (704, 1440)),
        ((50, 50), (768, 768)),
    ],
)
def test_odd_sizes_follow_the_canvas_rule(size, canvas):
    facts = inspect(video(Clip(frames=48, width=size[0], height=size[1])), NAME)
    assert video_canvas(facts.video) == canvas


def test_a_clip_is_shown_in_its_display_shape():
    """Pixels that are not square: 4:3 wide ones make 96x64 a 2:1 picture, upright or not."""
    flat = inspect(video(Clip(frames=48, pixel_ratio=Fraction(4, 3))), NAME)
    turned = inspect(video(Clip(frames=48, pixel_ratio=Fraction(4, 3), turn=90)), NAME)
    assert video_canvas(flat.video) == (1440, 704)
    assert video_canvas(turned.video) == (704, 1440)


def slots_by_definition(times: list[float], count: int, start: float) -> list[int]:
    """For every slot, the last frame whose own slot is not later; the first frame before that."""
    own = [math.floor((time - start) * 24 + 0.5) for time in times]
    return [max([i for i, slot in enumerate(own) if slot <= k], default=0) for k in range(count)]


def test_a_variable_frame_rate_is_resampled_by_timestamps():
    times = [0.0, 0.05, 0.3, 0.34, 0.38, 0.4, 0.7, 1.0, 1.01, 1.02, 1.5, 1.52, 1.9, 2.2, 2.21]
    data = video(Clip(frames=len(times), times=times))
    made = [number(frame) for frame in prepared(data, 124, size=STORED)]
    span = float(inspect(data, NAME).video.timeline.span)
    assert len(made) == math.floor(span * 24 + 0.5)
    assert made == slots_by_definition(times, len(made), 0.0)


@pytest.mark.parametrize("start", [0.0, 0.25, 0.49, 1.0])
@pytest.mark.parametrize("stride", [1, 12])
def test_start_and_stride_pick_slots_of_the_whole_clip(start, stride):
    made = prepared(video(Clip(frames=96, fps=30)), 124, start, stride, STORED)
    times = [index / 30 for index in range(96)]
    expected = slots_by_definition(times, math.floor((3.2 - start) * 24 + 0.5), start)
    assert [number(frame) for frame in made] == expected[::stride]


@given(
    frames=st.integers(48, 1800),
    fps=st.sampled_from([24, 25, 30, 48, 50, 60, Fraction(24_000, 1001), Fraction(30_000, 1001)]),
    target=st.sampled_from([107, 124, 362]),
)
def test_frame_counts_equal_the_references_float_arithmetic(frames, fps, target):
    expected = min(target, math.floor(frames * (24.0 / float(fps)) + 0.5))
    span = frames / Fraction(fps)
    assert presented_frames(span, Fraction(0), target) == expected


def test_colours_follow_the_tag_of_the_file():
    """A BT.709 file of the product's own writer comes back in its own colours."""
    from media_samples import product_file

    data = product_file(124)
    made = prepared(data, 1)[0]
    shown = made[:: made.shape[0] // 64, :: made.shape[1] // 64][:64, :64].astype(int)
    assert np.abs(shown - moving_clip(1)[0]).mean() < 12


@pytest.mark.parametrize(
    ("clip", "named"),
    [
        (Clip(frames=48, codec="mpeg4"), "video codec mpeg4 is not legal; legal: h264, hevc"),
        (Clip(frames=48, codec="libvpx-vp9"), "video codec vp9"),
        *((Clip(frames=n), f"{n} frames at 24 a second: ") for n in (1, 4, 5, 12, 13, 21, 22, 23)),
        (Clip(frames=20), "0.8333 s of video"),
        (Clip(frames=300, fps=12), "25 s of video"),
        (Clip(frames=9, fps=4), "4 frames a second"),
        (Clip(frames=49, width=200, height=32), "6.25 width / height"),
    ],
)
def test_illegal_clips_are_refused_by_name(clip, named):
    with pytest.raises(InvalidRequestError, match=rf"references\[0\]: .*{named}"):
        inspect(video(clip), NAME)


@pytest.mark.parametrize("form", ["mp4", "mov"])
@pytest.mark.parametrize("kept", [0.5, 0.99])
def test_a_truncated_clip_is_refused_by_name(form, kept):
    data = video(Clip(frames=60, form=form, sound=tones(2.5)))
    with pytest.raises(InvalidRequestError, match=r"references\[0\]: damaged or truncated"):
        inspect(data[: int(len(data) * kept)], NAME)


def test_a_clip_without_frames_is_refused_by_name():
    data = video(Clip(frames=48, fragmented=True))
    empty = data[: data.index(b"moof") - 4]
    with pytest.raises(InvalidRequestError, match=r"references\[0\]: a video without frames"):
        inspect(empty, NAME)


def test_a_fragmented_clip_is_read():
    assert inspect(video(Clip(frames=48, fragmented=True)), NAME).video.timeline.frames == 48


def test_hevc_is_read():
    assert inspect(video(Clip(frames=48, codec="libx265")), NAME).video.codec == "hevc"


@pytest.mark.parametrize("codec", ["libx264", "libx265"])
def test_frames_that_are_not_decoded_change_no_other_frame(codec):
    data = video(Clip(frames=96, fps=30, codec=codec))
    every = prepared(data, 124, size=STORED)
    np.testing.assert_array_equal(prepared(data, 124, stride=12, size=STORED), every[::12])
