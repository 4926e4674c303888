"""Sizes that the vision tower sees, against transformers' own rules."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
    smart_resize as stock_picture,
)
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as stock_video

from minimax_h3.core.errors import CheckpointError
from minimax_h3.text.vision_rules import VisionRules, load_vision_rules
from minimax_h3.weights.manifest import identify

RELEASED = VisionRules((65536, 16777216), (4096, 25165824))
SIDES = st.integers(1, 200).map(lambda cells: 32 * cells)


@pytest.fixture
def processor(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "processor"
    shutil.copytree(identify(tiny_checkpoint, "fl2va").processor, folder)
    return folder


def test_the_released_limits_are_read(processor: Path) -> None:
    assert load_vision_rules(processor) == RELEASED


@given(width=SIDES, height=SIDES)
def test_picture_sizes_equal_transformers(width: int, height: int) -> None:
    shown = stock_picture(height, width, 32, *RELEASED.picture_pixels)
    assert RELEASED.picture_size(width, height) == shown[::-1]


@given(frames=st.integers(2, 40), width=SIDES, height=SIDES)
@example(frames=23, width=1088, height=1024)
@example(frames=25, width=1088, height=960)
def test_video_sizes_equal_transformers(frames: int, width: int, height: int) -> None:
    low, high = RELEASED.video_pixels
    shown = stock_video(frames, height, width, 2, 32, low, high)
    assert RELEASED.video_size(frames, width, height) == shown[::-1]


@pytest.mark.parametrize(
    ("frames", "shown"), [(2, (1344, 768)), (25, (1344, 768)), (26, (1280, 736)), (31, (1184, 672))]
)
def test_long_videos_are_shown_smaller(frames: int, shown: tuple[int, int]) -> None:
    assert RELEASED.video_size(frames, 1344, 768) == shown


def test_keyframes_and_reference_pictures_are_shown_as_they_are() -> None:
    for size in ((1344, 768), (2016, 512), (3648, 2048), (8192, 2048), (256, 256)):
        assert RELEASED.picture_size(*size) == size
    assert RELEASED.picture_size(128, 96) == (320, 224), "a small canvas is enlarged"


def test_one_file_for_both_processors_is_read_too(processor: Path) -> None:
    image, video = (
        json.loads((processor / name).read_text())
        for name in ("preprocessor_config.json", "video_preprocessor_config.json")
    )
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        (processor / name).unlink()
    with pytest.raises(CheckpointError, match=r"preprocessor_config\.json: missing, and so is"):
        load_vision_rules(processor)
    both = {"image_processor": image, "video_processor": video}
    (processor / "processor_config.json").write_text(json.dumps(both))
    assert load_vision_rules(processor) == RELEASED


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("preprocessor_config.json", {"patch_size": 14}, "patch_size 14 is not legal; legal: 16"),
        ("preprocessor_config.json", {"image_mean": [0.48, 0.45, 0.4]}, "image_mean"),
        ("preprocessor_config.json", {"resample": 1}, "resample 1 is not legal; legal: 3"),
        ("preprocessor_config.json", {"size": {"longest_edge": 5}}, "both counts of pixels"),
        ("preprocessor_config.json", {"size": {"shortest_edge": 9, "longest_edge": 5}}, "size"),
        ("video_preprocessor_config.json", {"temporal_patch_size": 4}, "temporal_patch_size 4"),
        ("video_preprocessor_config.json", {"cap_pixels_per_frame": True}, "cap_pixels_per_frame"),
        ("video_preprocessor_config.json", {"rescale_factor": 1.0}, "rescale_factor"),
    ],
)
def test_another_preparation_is_refused(
    processor: Path, name: str, changes: dict, message: str
) -> None:
    path = processor / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(CheckpointError, match=message):
        load_vision_rules(processor)
