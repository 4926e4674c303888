"""Segments -> token ids and tags: borders, and whole presentations against diffusers' own."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from diffusers.modular_pipelines.minimax_h3.encoders import MiniMaxH3Ref2VATextEncoderStep as Step
from tokenizers import Tokenizer as Backend
from tokenizers import models
from transformers import PreTrainedTokenizerFast

from minimax_h3.core.conditions import AUDIO, DRIVING_AUDIO, IMAGE, KEYFRAME, VIDEO, Condition
from minimax_h3.core.constants import Modality
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.text.presentation import (
    TextSegment,
    VisionSegment,
    blocks_of,
    present,
    present_request,
    sampled_frames,
)
from minimax_h3.text.tokenizer import (
    IMAGE_PAD,
    VIDEO_PAD,
    VISION_END,
    VISION_START,
    Tokenizer,
    load_tokenizer,
)
from minimax_h3.text.vision_rules import VisionRules

RULES = VisionRules((65536, 16777216), (4096, 25165824))
SPECIAL = {VISION_START: 90, VISION_END: 91, IMAGE_PAD: 92, VIDEO_PAD: 93}


@pytest.fixture(scope="module")
def merging() -> Tokenizer:
    """Characters a, b and the merge ab."""
    return Tokenizer(Backend(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")])), SPECIAL)


def test_t2va_is_the_prompt_alone(tiny_checkpoint: Path) -> None:
    tokenizer = load_tokenizer(tiny_checkpoint / "FL2VA" / "tokenizer")
    prompt = " A cat\n"
    ids, tags = present_request(prompt, (), tokenizer)
    assert ids.tolist() == list(prompt.encode())
    assert tags.tolist() == [Modality.TEXT] * len(prompt)
    assert ids.dtype == tags.dtype == np.int64


def test_segments_are_tokenised_one_by_one(merging: Tokenizer) -> None:
    joined, _ = present([TextSegment("ab")], merging)
    assert joined.tolist() == [2]
    apart, _ = present([TextSegment("a"), TextSegment("b")], merging)
    assert apart.tolist() == [0, 1]


def test_a_vision_block_is_tagged_as_video_with_its_markers(merging: Tokenizer) -> None:
    ids, tags = present([TextSegment("ab"), VisionSegment(3), TextSegment("a")], merging)
    assert ids.tolist() == [2, 90, 92, 92, 92, 91, 0]
    assert tags.tolist() == [1, 0, 0, 0, 0, 0, 1]


def test_a_video_block_has_its_own_pads(merging: Tokenizer) -> None:
    ids, tags = present([VisionSegment(2, is_video=True)], merging)
    assert ids.tolist() == [90, 93, 93, 91]
    assert tags.tolist() == [0, 0, 0, 0]


@pytest.fixture(scope="module")
def folder(tiny_checkpoint: Path) -> Path:
    return tiny_checkpoint / "FL2VA" / "tokenizer"


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


@dataclass
class Reference:
    """What diffusers' presentation asks of a reference."""

    kind: str
    has_audio: bool


def picture(kind: str = IMAGE, width: int = 256, height: int = 256) -> Condition:
    return Condition(kind, 0, "", width=width, height=height, num_frames=1, presented_frames=1)


def video(presented_frames: int, audio_latents: int = 0) -> Condition:
    return Condition(
        VIDEO,
        1,
        "",
        width=320,
        height=256,
        num_frames=22,
        presented_frames=presented_frames,
        audio_latents=audio_latents,
    )


SOUND = Condition(AUDIO, 2, "", audio_latents=80)
MIXTURES = {
    "picture": [picture()],
    "three pictures": [picture(), picture(width=512), picture()],
    "silent video": [video(25)],
    "video with sound": [video(124, 200)],
    "everything": [SOUND, picture(), video(48, 80), picture(), SOUND, video(60), SOUND],
}


@pytest.mark.parametrize("name", MIXTURES)
def test_references_are_presented_as_by_diffusers(
    name: str, folder: Path, tokenizer: Tokenizer
) -> None:
    conditions = MIXTURES[name]
    stock = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    videos = [each for each in conditions if each.kind == VIDEO]
    times = [
        Step._sample_video_condition_frames(np.zeros((each.presented_frames, 1)), 24.0, 2.0, 2)[1]
        for each in videos
    ]
    expected = Step._build_presentation(
        stock,
        "Picture 1 sings, é漢",
        [Reference(each.kind, each.audio_latents > 0) for each in conditions],
        [each.width * each.height // 1024 for each in conditions if each.kind == IMAGE],
        [each.width * each.height // 1024 for each in videos],
        times,
    )
    blocks = blocks_of(conditions, RULES)
    ids, tags = present_request("Picture 1 sings, é漢", blocks, tokenizer)
    assert ids.tolist() == expected[0]
    assert tags.tolist() == expected[1]
    assert ids.dtype == tags.dtype == np.int64


@pytest.mark.parametrize("presented_frames", [13, 24, 25, 36, 37, 48, 49, 120, 124, 345, 362])
def test_frames_and_times_of_a_video_are_those_of_diffusers(presented_frames: int) -> None:
    frames, times = Step._sample_video_condition_frames(
        np.arange(presented_frames)[:, None], 24.0, 2.0, 2
    )
    (block,) = blocks_of([video(presented_frames)], RULES)
    assert block.sampled_frames == sampled_frames(presented_frames) == len(frames)
    assert [int(frame[0]) for frame in frames] == list(range(0, presented_frames, 12))
    assert block.pair_times_s == times
    assert block.grid[0] == len(times)


def test_labels_are_rounded_half_to_even(tokenizer: Tokenizer) -> None:
    ids, _ = present_request("", blocks_of([video(120)], RULES), tokenizer)
    text = bytes(token for token in ids.tolist() if token < 256).decode()
    assert text == "<Video 1>: <0.2 seconds><1.2 seconds><2.2 seconds><3.2 seconds><4.2 seconds>"


def test_keyframes_are_pictures_in_order(tokenizer: Tokenizer) -> None:
    first, last = picture(KEYFRAME, 1344, 768), picture(KEYFRAME, 1344, 768)
    ids, tags = present_request("a fox", blocks_of([first, last], RULES), tokenizer)
    label = len("<Picture 1>: ")
    assert len(ids) == 2 * (label + 1008 + 2) + len("a fox")
    assert bytes(ids[:label].tolist()) == b"<Picture 1>: "
    second = ids[label + 1010 : 2 * label + 1010]
    assert bytes(second.tolist()) == b"<Picture 2>: "
    assert tags[:label].tolist() == [1] * label
    assert tags[label : label + 1010].tolist() == [0] * 1010
    assert (ids == tokenizer.special_id(IMAGE_PAD)).sum() == 2 * 1008


def test_a_driving_sound_is_neither_labelled_nor_counted(tokenizer: Tokenizer) -> None:
    driving = Condition(DRIVING_AUDIO, 0, "", audio_latents=80)
    with_driver = blocks_of([driving, picture(), SOUND], RULES)
    assert with_driver == blocks_of([picture(), SOUND], RULES)
    ids, _ = present_request("x", with_driver, tokenizer)
    assert b"<Audio 1>: " in bytes(token for token in ids.tolist() if token < 256)


@pytest.mark.parametrize("presented_frames", [1, 12])
def test_a_video_without_a_pair_of_frames_is_refused(presented_frames: int) -> None:
    with pytest.raises(InvalidRequestError, match=r"references\[1\]: .* legal: 13 frames or more"):
        blocks_of([video(presented_frames)], RULES)


@pytest.mark.parametrize("token", [IMAGE_PAD, VIDEO_PAD])
def test_a_prompt_that_spells_a_vision_pad_is_refused(tokenizer: Tokenizer, token: str) -> None:
    for blocks in ((), blocks_of([picture()], RULES)):
        with pytest.raises(InvalidRequestError, match=r"prompt: <\|\w+_pad\|> is not legal"):
            present_request(f"a {token} fox", blocks, tokenizer)
    for harmless in (VISION_START, VISION_END, "<|im_start|>", "<Picture 1>: "):
        ids, tags = present_request(harmless, (), tokenizer)
        assert len(ids) == len(tags) > 0
