import io
import threading
import time

import av
import numpy as np
import pytest
from media_samples import first_planes, moving_clip

from minimax_h3.core.errors import H3Error
from minimax_h3.core.fields import X264_PRESETS
from minimax_h3.media import h264
from minimax_h3.media.h264 import ThreadedVideoEncoder, VideoStreamEncoder

WAIT_S = 10.0

# ITU-R BT.709 and BT.601: luma weights of R, G, B.
WEIGHTS = {"709": (0.2126, 0.7152, 0.0722), "601": (0.299, 0.587, 0.114)}
COLOURS = [
    *((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (0, 255, 255), (255, 0, 255)),
    *((255, 255, 255), (0, 0, 0), (128, 128, 128), (200, 30, 90), (20, 120, 200)),
]


def limited_yuv(rgb: tuple[int, int, int], standard: str) -> np.ndarray:
    """Limited-range Y, Cb, Cr of one colour, straight from the definition."""
    red, _, blue = weights = np.array(WEIGHTS[standard])
    value = np.array(rgb) / 255
    luma = float(weights @ value)
    return np.array(
        [
            16 + 219 * luma,
            128 + 224 * (value[2] - luma) / (2 * (1 - blue)),
            128 + 224 * (value[0] - luma) / (2 * (1 - red)),
        ]
    )


def limited_rgb(yuv: np.ndarray, standard: str) -> np.ndarray:
    """Inverse of `limited_yuv`, 0..255."""
    red, green, blue = WEIGHTS[standard]
    luma, cb, cr = (yuv[0] - 16) / 219, (yuv[1] - 128) / 224, (yuv[2] - 128) / 224
    r, b = luma + 2 * (1 - red) * cr, luma + 2 * (1 - blue) * cb
    return 255 * np.array([r, (luma - red * r - blue * b) / green, b])


def encode(frames: np.ndarray, preset: str = "veryfast", crf: int = 18) -> bytes:
    encoder = VideoStreamEncoder(frames.shape[2], frames.shape[1], preset, crf)
    encoder.push(frames)
    return encoder.finish()


def decode(data: bytes) -> np.ndarray:
    with av.open(io.BytesIO(data)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


@pytest.mark.parametrize("frames", [107, 124, 362])
def test_every_frame_arrives_at_24_per_second(frames):
    with av.open(io.BytesIO(encode(moving_clip(frames)))) as container:
        stream = container.streams.video[0]
        assert stream.average_rate == 24
        assert stream.start_time == 0
        assert stream.duration * stream.time_base * 24 == frames
        times = [frame.pts * frame.time_base for frame in container.decode(stream)]
    assert [time * 24 for time in times] == list(range(frames))


@pytest.mark.parametrize("rgb", COLOURS)
def test_colours_are_bt709_and_not_bt601(rgb):
    frames = np.empty((3, 64, 64, 3), np.uint8)
    frames[:] = rgb
    planes = first_planes(encode(frames, crf=1))
    seen = np.array([np.median(plane) for plane in planes])
    assert np.abs(seen - limited_yuv(rgb, "709")).max() <= 1.5
    assert np.abs(limited_rgb(seen, "709") - rgb).max() <= 4
    if len(set(rgb)) > 1:
        assert np.abs(seen - limited_yuv(rgb, "601")).max() >= 4
        wrong = np.clip(limited_rgb(seen, "601"), 0, 255)
        assert np.abs(wrong - rgb).max() >= 8, "a 601 reader would show another colour"


def test_colour_tags_are_in_the_stream():
    with av.open(io.BytesIO(encode(moving_clip(5)))) as container:
        context = container.streams.video[0].codec_context
        tags = (
            context.color_primaries,
            context.color_trc,
            context.colorspace,
            context.color_range,
        )
        assert tuple(map(int, tags)) == (1, 1, 1, 1)
        assert context.pix_fmt == "yuv420p"


def test_a_low_crf_keeps_the_picture():
    smooth = moving_clip(12, 128, 128) // 2 + 64
    shown = decode(encode(smooth, crf=8))
    flat = np.abs(np.diff(smooth.astype(int), axis=2)).max(axis=-1) < 10
    error = np.abs(shown.astype(int) - smooth).max(axis=-1)[:, :, :-1][flat]
    assert np.median(error) <= 4


@pytest.mark.parametrize(
    ("height", "width", "frames", "preset"),
    [
        (64, 96, 124, "veryfast"),
        (64, 96, 60, "slow"),
        (320, 576, 24, "veryfast"),
        (320, 576, 24, "ultrafast"),
    ],
)
def test_equal_frames_give_equal_bytes(height, width, frames, preset):
    # Sizes at which x264's macroblock tree gave another file on most runs.
    clip = moving_clip(frames, height, width)
    assert len({encode(clip, preset) for _ in range(6)}) == 1


def test_the_cut_of_the_pushes_does_not_matter():
    clip = moving_clip(40)
    encoder = VideoStreamEncoder(64, 64)
    for start in (0, 1, 18, 35):
        stop = {0: 1, 1: 18, 18: 35, 35: 40}[start]
        encoder.push(clip[start:stop])
    assert encoder.finish() == encode(clip)


def test_a_strided_view_is_encoded_right():
    clip = moving_clip(10, 64, 128)
    assert encode(clip[:, :, ::2]) == encode(np.ascontiguousarray(clip[:, :, ::2]))


@pytest.mark.parametrize("preset", X264_PRESETS)
def test_every_preset_of_the_request_contract_opens(preset):
    assert decode(encode(moving_clip(3), preset)).shape == (3, 64, 64, 3)


@pytest.mark.parametrize("size", [(32, 32), (2016, 512), (512, 2016)])
def test_extreme_canvases(size):
    width, height = size
    assert decode(encode(moving_clip(2, height, width))).shape == (2, height, width, 3)


@pytest.mark.parametrize("size", [(63, 64), (64, 0), (-2, 64)])
def test_odd_sizes_are_refused(size):
    with pytest.raises(ValueError, match="even sizes"):
        VideoStreamEncoder(*size)


def test_wrong_settings_are_refused():
    with pytest.raises(H3Error, match="preset 'hasty'"):
        VideoStreamEncoder(64, 64, preset="hasty")


@pytest.mark.parametrize(
    "frames",
    [
        np.zeros((2, 64, 32, 3), np.uint8),
        np.zeros((64, 64, 3), np.uint8),
        np.zeros((1, 64, 64, 3), np.float32),
    ],
)
@pytest.mark.parametrize("kind", [VideoStreamEncoder, ThreadedVideoEncoder])
def test_wrong_frames_are_refused_at_the_push(kind, frames):
    encoder = kind(64, 64)
    with pytest.raises(ValueError, match=r"legal: uint8 \[k, 64, 64, 3\]"):
        encoder.push(frames)
    encoder.push(moving_clip(1))
    assert decode(encoder.finish()).shape == (1, 64, 64, 3)


@pytest.mark.parametrize("kind", [VideoStreamEncoder, ThreadedVideoEncoder])
def test_no_frame_no_file(kind):
    with pytest.raises(H3Error, match="without a frame"):
        kind(64, 64).finish()


@pytest.mark.parametrize("kind", [VideoStreamEncoder, ThreadedVideoEncoder])
def test_a_finished_encoder_is_closed(kind):
    encoder = kind(64, 64)
    encoder.push(moving_clip(2))
    encoder.finish()
    with pytest.raises(H3Error, match="closed"):
        encoder.push(moving_clip(2))
    with pytest.raises(H3Error, match="closed"):
        encoder.finish()


def worker_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("h264")]


def test_the_thread_writes_the_same_bytes():
    clip = moving_clip(124, 64, 96)
    with ThreadedVideoEncoder(96, 64) as encoder:
        for start in range(0, 124, 17):
            encoder.push(clip[start : start + 17])
        assert encoder.finish() == encode(clip)
    assert not worker_threads()


def test_a_push_returns_while_the_thread_still_encodes(monkeypatch):
    may_encode, encoding = threading.Event(), threading.Event()
    original = VideoStreamEncoder.push

    def slow_push(self, frames):
        encoding.set()
        assert may_encode.wait(WAIT_S)
        original(self, frames)

    monkeypatch.setattr(VideoStreamEncoder, "push", slow_push)
    with ThreadedVideoEncoder(64, 64) as encoder:
        encoder.push(moving_clip(1))
        assert encoding.wait(WAIT_S)
        encoder.push(moving_clip(1))
        third_done = threading.Event()

        def third() -> None:
            encoder.push(moving_clip(1))
            third_done.set()

        pusher = threading.Thread(target=third)
        pusher.start()
        assert not third_done.wait(0.1), "a third chunk must wait: memory holds two"
        may_encode.set()
        assert third_done.wait(WAIT_S)
        pusher.join()
        assert len(decode(encoder.finish())) == 3


def push_three_more(encoder: ThreadedVideoEncoder) -> None:
    for _ in range(3):
        encoder.push(moving_clip(1))


@pytest.mark.parametrize("call", [push_three_more, ThreadedVideoEncoder.finish])
def test_an_error_of_the_thread_surfaces_at_a_later_call(monkeypatch, call):
    def broken(self, frame):
        raise H3Error("H.264 encoder: frame 0: broken")

    monkeypatch.setattr(VideoStreamEncoder, "_encode", broken)
    encoder = ThreadedVideoEncoder(64, 64)
    encoder.push(moving_clip(1))
    with pytest.raises(H3Error, match="broken"):
        call(encoder)
    assert not worker_threads()
    with pytest.raises(H3Error, match="closed"):
        encoder.push(moving_clip(1))


def test_leaving_early_frees_thread_and_encoder():
    before = time.perf_counter()
    with ThreadedVideoEncoder(64, 64) as encoder:
        encoder.push(moving_clip(17))
        encoder.push(moving_clip(17))
    assert time.perf_counter() - before < WAIT_S
    assert not worker_threads()
    assert encoder._encoder._container is None
    encoder.abort()  # again
    with pytest.raises(H3Error, match="closed"):
        encoder.finish()


def test_an_encoder_that_nobody_closed_leaves_no_thread_behind():
    encoder = ThreadedVideoEncoder(64, 64)
    encoder.push(moving_clip(1))
    del encoder
    deadline = time.perf_counter() + WAIT_S
    while worker_threads() and time.perf_counter() < deadline:
        time.sleep(0.01)
    assert not worker_threads()


def test_thread_count_does_not_follow_the_machine():
    assert isinstance(h264._THREADS, int)
    stream = encode(moving_clip(2))
    assert b"mbtree=0" in stream
    tall = encode(np.zeros((2, 256, 64, 3), np.uint8))  # few lines are one thread of either kind
    assert b" threads=1 " not in tall
    assert b"sliced_threads=0" in tall
    assert f" threads={h264._THREADS} ".encode() in stream or b" threads=1 " in stream
