"""Segments -> token ids and tags, with a tokenizer whose merges would cross borders."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models

from minimax_h3.core.constants import Modality
from minimax_h3.text.presentation import TextSegment, VisionSegment, present, present_request
from minimax_h3.text.tokenizer import (
    IMAGE_PAD,
    VIDEO_PAD,
    VISION_END,
    VISION_START,
    Tokenizer,
    load_tokenizer,
)

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
