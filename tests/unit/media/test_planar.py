"""Planar pictures made by torch against those that libswscale makes of the same RGB."""

import numpy as np
import pytest
import torch

from minimax_h3.media.h264 import ThreadedVideoEncoder, VideoStreamEncoder
from minimax_h3.vae.pixels import planar_yuv420

WIDTH, HEIGHT = 96, 64


def by_swscale(frames: np.ndarray) -> np.ndarray:
    """uint8 [k, 3 H / 2, W]: the present path of RGB frames."""
    encoder = VideoStreamEncoder(frames.shape[2], frames.shape[1])
    try:
        return np.stack([encoder._to_yuv(frame).to_ndarray() for frame in frames])
    finally:
        encoder.close()


def by_torch(frames: np.ndarray) -> np.ndarray:
    return planar_yuv420(torch.from_numpy(frames).permute(3, 0, 1, 2)).numpy()


def noise(count: int) -> np.ndarray:
    rng = np.random.default_rng(3)
    return rng.integers(0, 256, (count, HEIGHT, WIDTH, 3), dtype=np.uint8)


def gradients() -> np.ndarray:
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    planes = (rows * 255 // HEIGHT, columns * 255 // WIDTH, (rows + columns) % 256)
    return np.stack(planes, axis=-1).astype(np.uint8)[None]


def corners() -> np.ndarray:
    """Flat frames of the eight corners of the colour cube."""
    colours = np.array([[r, g, b] for r in (0, 255) for g in (0, 255) for b in (0, 255)], np.uint8)
    return np.broadcast_to(colours[:, None, None], (8, HEIGHT, WIDTH, 3)).copy()


@pytest.mark.parametrize(
    "frames", [noise(3), gradients(), corners()], ids=["noise", "ramp", "cube"]
)
def test_torch_and_swscale_agree_within_one_level(frames: np.ndarray) -> None:
    ours, theirs = by_torch(frames), by_swscale(frames)
    assert ours.shape == theirs.shape == (len(frames), HEIGHT * 3 // 2, WIDTH)
    difference = np.abs(ours.astype(np.int16) - theirs)
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.2


def test_known_colours() -> None:
    """White, black and pure red of BT.709 in limited range."""
    planes = by_torch(corners())
    chroma_rows = HEIGHT // 4
    for index, (luma, blue, red) in {
        0: (16, 128, 128),
        7: (235, 128, 128),
        4: (63, 102, 240),
    }.items():
        assert (planes[index, :HEIGHT] == luma).all()
        assert (planes[index, HEIGHT : HEIGHT + chroma_rows] == blue).all()
        assert (planes[index, HEIGHT + chroma_rows :] == red).all()


@pytest.mark.parametrize("kind", [VideoStreamEncoder, ThreadedVideoEncoder])
def test_planar_input_gives_the_bytes_of_the_same_rgb(kind: type) -> None:
    frames = noise(5)

    def encoded(pictures: np.ndarray) -> bytes:
        encoder = kind(WIDTH, HEIGHT, "ultrafast")
        encoder.push(pictures)
        return encoder.finish()

    assert encoded(by_swscale(frames)) == encoded(frames)


def test_planes_of_another_size_are_refused() -> None:
    encoder = VideoStreamEncoder(WIDTH, HEIGHT)
    with pytest.raises(ValueError, match=r"legal: uint8 \[k, 64, 96, 3\] or \[k, 96, 96\]"):
        encoder.push(np.zeros((1, HEIGHT, WIDTH), np.uint8))
    encoder.close()
