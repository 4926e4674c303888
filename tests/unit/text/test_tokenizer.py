"""Token ids against transformers' own tokenizer of the same folder."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from minimax_h3.core.errors import CheckpointError
from minimax_h3.text.tokenizer import IMAGE_PAD, VIDEO_PAD, VISION_END, VISION_START, load_tokenizer

TEXTS = [
    "A cat plays the piano.",
    "  leading, trailing \t\n ",
    "Grüße, 漢字, 🎹, e\u0301",
    "<Picture 1>: ",
    "<|vision_start|><|image_pad|><|vision_end|>",
    "\x00\x7f",
]


@pytest.fixture(scope="module")
def folder(tiny_checkpoint: Path) -> Path:
    return tiny_checkpoint / "FL2VA" / "tokenizer"


@pytest.fixture(scope="module")
def pair(folder: Path):
    return load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("text", TEXTS)
def test_ids_equal_transformers(pair, text: str) -> None:
    ours, theirs = pair
    ids = ours.encode(text)
    assert ids.dtype == np.int64
    assert ids.tolist() == theirs(text, add_special_tokens=False)["input_ids"]


@given(text=st.text(max_size=60))
def test_ids_equal_transformers_on_any_text(pair, text: str) -> None:
    ours, theirs = pair
    assert ours.encode(text).tolist() == theirs(text, add_special_tokens=False)["input_ids"]


def test_every_byte_is_one_token(pair) -> None:
    assert pair[0].encode("aé漢").tolist() == list("aé漢".encode())


def test_special_ids_fit_the_text_encoder(folder: Path, pair) -> None:
    config = json.loads((folder.parent / "text_encoder" / "config.json").read_text())
    ours, theirs = pair
    assert ours.special_id(IMAGE_PAD) == config["image_token_id"]
    assert ours.special_id(VIDEO_PAD) == config["video_token_id"]
    assert ours.special_id(VISION_START) == config["vision_start_token_id"]
    assert ours.special_id(VISION_END) == config["vision_end_token_id"]
    for token in (IMAGE_PAD, VIDEO_PAD, VISION_START, VISION_END):
        assert theirs.convert_tokens_to_ids(token) == ours.special_id(token)
    assert len(theirs) == config["text_config"]["vocab_size"]


def _edited(folder: Path, tmp_path: Path, change) -> Path:
    copy = tmp_path / "tokenizer"
    shutil.copytree(folder, copy)
    content = json.loads((copy / "tokenizer.json").read_text())
    change(content)
    (copy / "tokenizer.json").write_text(json.dumps(content))
    return copy


def test_limits_in_the_file_do_not_cut_a_prompt(folder: Path, tmp_path: Path) -> None:
    truncation = {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    copy = _edited(folder, tmp_path, lambda content: content.update(truncation=truncation))
    assert len(load_tokenizer(copy).encode("a long prompt")) == 13


def test_a_missing_vision_token_is_named(folder: Path, tmp_path: Path) -> None:
    copy = _edited(folder, tmp_path, lambda content: content["added_tokens"].pop(2))
    with pytest.raises(CheckpointError, match=r"missing token <\|vision_end\|>"):
        load_tokenizer(copy)


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: missing"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: not readable as a tokenizer"):
        load_tokenizer(tmp_path)
