"""Patches against transformers' processors: recorded digests, its PIL class, and torch's kernel.

The digests are those of `Qwen2VLImageProcessor` and `Qwen3VLVideoProcessor` of transformers 5.24
under torch 2.14.1 and torchvision 0.29.1, which this environment does not hold.
"""

import hashlib

import numpy as np
import pytest
import torch
from oracles.vision_processor import ReferenceProcessor
from vision_samples import pattern

from minimax_h3.core.conditions import AUDIO, IMAGE, KEYFRAME, VIDEO, Condition
from minimax_h3.core.errors import H3Error
from minimax_h3.text.presentation import Block, blocks_of
from minimax_h3.text.vision_inputs import vision_inputs
from minimax_h3.text.vision_pixels import VisionTensors, pack_pixels
from minimax_h3.text.vision_rules import VisionRules

RULES = VisionRules((65536, 16777216), (4096, 25165824))
PICTURE_PAD, VIDEO_PAD = 7, 8
PICTURES = {
    (256, 256): "e9407e1de9a77309",
    (1344, 768): "b62a0eae8ac9fd80",
    (768, 1344): "148c8c3d6193fdf1",
    (2720, 2048): "719edee60b10a28f",
}
VIDEOS = {(768, 768, 2): "ecd0f0a1900a12c6", (1344, 768, 3): "5db1aa48b572dfd0"}
LEVEL = 1 / 127.5  # one byte, after normalisation


def picture(width: int, height: int, kind: str = IMAGE) -> Condition:
    return Condition(kind, 0, "", width=width, height=height, num_frames=1, presented_frames=1)


def video(width: int, height: int, sampled: int, audio_latents: int = 0) -> Condition:
    return Condition(
        VIDEO,
        0,
        "",
        width=width,
        height=height,
        num_frames=22,
        presented_frames=12 * sampled - 11,
        audio_latents=audio_latents,
    )


def frames_of(width: int, height: int, count: int) -> np.ndarray:
    return np.stack([pattern(width, height, seed) for seed in range(count)])


def tensors(conditions: list[Condition], frames: list[np.ndarray]) -> dict[str, torch.Tensor]:
    """From pixels to what Qwen gets."""
    blocks = blocks_of(conditions, RULES)
    return inputs(pack_pixels(blocks, frames), blocks)


def inputs(packed: VisionTensors, blocks: tuple[Block, ...]) -> dict[str, torch.Tensor]:
    ids = [
        pad
        for block in blocks
        for pad in [VIDEO_PAD if block.is_video else PICTURE_PAD] * (block.pads * block.grid[0])
    ]
    return dict(
        vision_inputs(
            np.array(ids, dtype=np.int64),
            packed.pixel_values,
            packed.image_grid,
            packed.video_grid,
            image_pad=PICTURE_PAD,
            video_pad=VIDEO_PAD,
            device=torch.device("cpu"),
        )
    )


def digest(values: torch.Tensor) -> str:
    return hashlib.sha256(values.numpy().tobytes()).hexdigest()[:16]


@pytest.mark.parametrize("size", PICTURES)
def test_pictures_equal_the_fast_processor_bit_for_bit(size: tuple[int, int]) -> None:
    given = tensors([picture(*size)], [pattern(*size)])
    assert digest(given["pixel_values"]) == PICTURES[size]
    assert given["image_grid_thw"].tolist() == [[1, size[1] // 16, size[0] // 16]]


@pytest.mark.parametrize("size", VIDEOS)
def test_videos_equal_the_fast_processor_bit_for_bit(size: tuple[int, int, int]) -> None:
    given = tensors([video(*size)], [frames_of(*size)])
    assert digest(given["pixel_values_videos"]) == VIDEOS[size]
    assert given["video_grid_thw"].tolist() == [[-(-size[2] // 2), size[1] // 16, size[0] // 16]]


@pytest.mark.parametrize("size", [(128, 96), (32, 64), (64, 64)])
def test_enlarged_pictures_equal_the_pil_processor_and_nearly_the_fast_one(
    size: tuple[int, int],
) -> None:
    given = tensors([picture(*size, kind=KEYFRAME)], [pattern(*size)])
    stock = ReferenceProcessor(PICTURE_PAD, VIDEO_PAD).image_processor(
        images=[pattern(*size)], return_tensors="pt"
    )
    assert given["image_grid_thw"].tolist() == stock["image_grid_thw"].tolist()
    assert (given["pixel_values"] - stock["pixel_values"]).abs().max() < LEVEL / 1000
    high, wide = (16 * side for side in given["image_grid_thw"][0, 1:].tolist())
    fast = tensors([picture(wide, high)], [by_torch(pattern(*size)[None], wide, high)[0]])
    assert_near(given["pixel_values"], fast["pixel_values"])


def test_a_video_shown_smaller_is_nearly_that_of_the_fast_processor() -> None:
    frames = frames_of(1344, 768, 31)
    given = tensors([video(1344, 768, 31)], [frames])
    assert given["video_grid_thw"].tolist() == [[16, 42, 74]]
    fast = tensors([video(1184, 672, 31)], [by_torch(frames, 1184, 672)])
    assert digest(fast["pixel_values_videos"]) == "b5b8c1f5f3bd4be1", "of the fast processor"
    assert_near(given["pixel_values_videos"], fast["pixel_values_videos"])


def by_torch(frames: np.ndarray, width: int, height: int) -> np.ndarray:
    """The kernel behind torchvision's resize."""
    channels_first = torch.from_numpy(frames).permute(0, 3, 1, 2)
    resized = torch.nn.functional.interpolate(
        channels_first, size=(height, width), mode="bicubic", antialias=True
    )
    return resized.permute(0, 2, 3, 1).contiguous().numpy()


def assert_near(values: torch.Tensor, others: torch.Tensor) -> None:
    """Pillow and torch round their fixed-point kernels differently, by two levels at most."""
    error = (values - others).abs()
    assert error.max() < 2.01 * LEVEL
    assert error.mean() < 0.15 * LEVEL


def test_pictures_come_before_videos_whatever_the_order() -> None:
    conditions = [video(320, 256, 3), picture(256, 256), video(256, 256, 2), picture(320, 256)]
    pixels = [frames_of(320, 256, 3), pattern(256, 256, 9), frames_of(256, 256, 2)]
    pixels.append(pattern(320, 256, 4))
    mixed = tensors(conditions, pixels)
    pictures = [tensors([conditions[i]], [pixels[i]])["pixel_values"] for i in (1, 3)]
    videos = [tensors([conditions[i]], [pixels[i]])["pixel_values_videos"] for i in (0, 2)]
    assert torch.equal(mixed["pixel_values"], torch.cat(pictures))
    assert torch.equal(mixed["pixel_values_videos"], torch.cat(videos))
    assert mixed["image_grid_thw"].tolist() == [[1, 16, 16], [1, 16, 20]]
    assert mixed["video_grid_thw"].tolist() == [[2, 16, 20], [1, 16, 16]]


def test_sound_has_no_pixels_and_t2va_has_no_rows() -> None:
    sound = Condition(AUDIO, 0, "", audio_latents=80)
    alone = pack_pixels(blocks_of([sound, picture(256, 256)], RULES), [pattern(256, 256)])
    assert alone.pixel_values.shape == (256, 768)
    none = pack_pixels((), ())
    assert none.pixel_values.shape == (0, 768)
    assert none.pixel_values.dtype == np.uint8
    assert none.image_grid.shape == none.video_grid.shape == (0, 3)


def test_one_item_at_a_time_is_asked_for_and_none_is_written_to() -> None:
    conditions = [picture(256, 256)] * 3
    given, taken = pattern(256, 256), []

    def items():
        for index in range(3):
            taken.append(index)
            frame = given.copy()
            frame.flags.writeable = False
            yield frame

    packed = pack_pixels(blocks_of(conditions, RULES), items())
    assert taken == [0, 1, 2]
    assert np.array_equal(packed.pixel_values[:256], packed.pixel_values[512:])


def test_missing_and_wrong_pixels_are_errors() -> None:
    blocks = blocks_of([picture(256, 256), picture(256, 256)], RULES)
    with pytest.raises(H3Error, match="1 items of pixels for 2 blocks"):
        pack_pixels(blocks, [pattern(256, 256)])
    with pytest.raises(H3Error, match=r"shape \(1, 256, 288, 3\) for a block of"):
        pack_pixels(blocks, [pattern(288, 256)])
    with pytest.raises(H3Error, match=r"shape \(2, 256, 256, 3\) for a block of \(3,"):
        pack_pixels(blocks_of([video(256, 256, 3)], RULES), [frames_of(256, 256, 2)])


def test_contradicting_tensors_are_errors() -> None:
    blocks = blocks_of([picture(256, 256), video(256, 256, 2)], RULES)
    packed = pack_pixels(blocks, [pattern(256, 256), frames_of(256, 256, 2)])
    with pytest.raises(H3Error, match="767 rows for grids that need 768"):
        inputs(VisionTensors(packed.pixel_values[1:], packed.image_grid, packed.video_grid), blocks)
    with pytest.raises(H3Error, match="0 picture pads for grids that need 64"):
        inputs(packed, blocks[1:])
    with pytest.raises(H3Error, match="0 video pads for grids that need 64"):
        inputs(packed, blocks[:1])
