"""The truncated encoder against transformers' full Qwen3-VL on the same files."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3VLForConditionalGeneration

from minimax_h3.core.errors import CheckpointError, InvalidRequestError
from minimax_h3.text.presentation import TextSegment, VisionSegment, present
from minimax_h3.text.qwen import TruncatedQwen3VL
from minimax_h3.text.tokenizer import IMAGE_PAD, VIDEO_PAD, Tokenizer, load_tokenizer
from minimax_h3.text.vision_inputs import vision_inputs
from minimax_h3.weights.manifest import identify

CPU = torch.device("cpu")
IDS = np.arange(3, 40, dtype=np.int64)


@pytest.fixture(scope="module")
def full(tiny_checkpoint: Path):
    folder = tiny_checkpoint / "FL2VA" / "text_encoder"
    return Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def encoder(tiny_checkpoint: Path) -> TruncatedQwen3VL:
    return TruncatedQwen3VL.load(identify(tiny_checkpoint, "fl2va"), CPU, torch.float32)


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint: Path) -> Tokenizer:
    return load_tokenizer(identify(tiny_checkpoint, "fl2va").tokenizer)


def _states(full, ids: np.ndarray, **vision: torch.Tensor):
    tokens = torch.from_numpy(ids)[None]
    types = vision.pop("mm_token_type_ids", torch.zeros_like(tokens))
    with torch.inference_mode():
        return full.model(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            mm_token_type_ids=types,
            output_hidden_states=True,
            use_cache=False,
            **vision,
        ).hidden_states


def test_equals_hidden_state_50_of_the_full_model(encoder: TruncatedQwen3VL, full) -> None:
    features = encoder.encode(IDS)
    states = _states(full, IDS)
    assert len(states) == 52
    assert torch.equal(features, states[50][0])
    for other in (49, 51):
        assert not torch.allclose(features, states[other][0], atol=1e-2)


def test_both_layouts_and_both_shapes_of_ids_agree(
    tiny_checkpoint: Path, tiny_diffusers_checkpoint: Path
) -> None:
    first = TruncatedQwen3VL.load(identify(tiny_checkpoint, "fl2va"), CPU, torch.bfloat16)
    second = TruncatedQwen3VL.load(
        identify(tiny_diffusers_checkpoint, "fl2va"), CPU, torch.bfloat16
    )
    features = first.encode(IDS)
    assert features.dtype == torch.bfloat16
    assert features.shape == (len(IDS), 24)
    assert torch.equal(features, second.encode(IDS[None]))


def test_vision_blocks_equal_the_full_model(encoder: TruncatedQwen3VL, full, tokenizer) -> None:
    """A picture, two pairs of frames of a video, another picture: the stock model fed the same."""
    segments = [
        *(TextSegment("<Picture 1>: "), VisionSegment(6), TextSegment("<Video 1>: ")),
        *(TextSegment("<0.2 seconds>"), VisionSegment(4, is_video=True)),
        *(TextSegment("<1.0 seconds>"), VisionSegment(4, is_video=True)),
        *(TextSegment("<Picture 2>: "), VisionSegment(2), TextSegment("a cat")),
    ]
    ids, _ = present(segments, tokenizer)
    rows = np.random.default_rng(0).integers(0, 256, (24 + 8 + 2 * 32, 768), dtype=np.uint8)
    vision = vision_inputs(
        ids,
        rows,
        np.array([[1, 4, 6], [1, 2, 4]]),
        np.array([[2, 4, 4]]),
        image_pad=encoder.image_pad,
        video_pad=encoder.video_pad,
        device=CPU,
    )
    features = encoder.encode(ids, vision)
    expected = _states(full, ids, **vision)[50][0]
    assert torch.equal(features, expected)
    assert not torch.allclose(features, encoder.encode(ids), atol=1e-2)
    other = vision | {"pixel_values_videos": vision["pixel_values_videos"].flip(0)}
    assert not torch.allclose(features, encoder.encode(ids, other), atol=1e-2)


def test_the_pads_of_the_config_are_those_of_the_tokenizer(
    encoder: TruncatedQwen3VL, tokenizer
) -> None:
    assert encoder.image_pad == tokenizer.special_id(IMAGE_PAD)
    assert encoder.video_pad == tokenizer.special_id(VIDEO_PAD)


@pytest.mark.parametrize("ids", [[], [-1], [5, 261]])
def test_ids_outside_the_vocabulary_are_refused(encoder: TruncatedQwen3VL, ids: list[int]) -> None:
    with pytest.raises(InvalidRequestError, match="from 0 to 260"):
        encoder.encode(np.array(ids, dtype=np.int64))


@pytest.fixture
def copied(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    root = tmp_path / "FL2VA"
    shutil.copytree(tiny_checkpoint / "FL2VA", root)
    return root


def _configure(root: Path, **changes: object) -> None:
    path = root / "text_encoder" / "config.json"
    config = json.loads(path.read_text())
    config["text_config"].update(changes)
    path.write_text(json.dumps(config))


def _keep(root: Path, kept) -> None:
    folder = root / "text_encoder"
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
        path.unlink()
    (folder / "model.safetensors.index.json").unlink()
    save_file(
        {name: value for name, value in tensors.items() if kept(name)}, folder / "model.safetensors"
    )


def test_fewer_layers_are_refused(copied: Path) -> None:
    _configure(copied, num_hidden_layers=49)
    _keep(copied, lambda name: ".layers.49." not in name and ".layers.50." not in name)
    with pytest.raises(CheckpointError, match=r"num_hidden_layers 49 is not legal.*50 or more"):
        TruncatedQwen3VL.load(identify(copied, "fl2va"), CPU, torch.float32)


def test_a_stack_cut_to_50_layers_is_accepted(copied: Path, full) -> None:
    _configure(copied, num_hidden_layers=50)
    dead = ("model.language_model.norm.", "lm_head.", "model.language_model.layers.50.")
    _keep(copied, lambda name: not name.startswith(dead))
    encoder = TruncatedQwen3VL.load(identify(copied, "fl2va"), CPU, torch.float32)
    assert torch.equal(encoder.encode(IDS), _states(full, IDS)[50][0])


@pytest.mark.parametrize(
    "name",
    [
        "model.language_model.layers.50.mlp.up_proj.weight",
        "model.language_model.norm.weight",
        "model.visual.deepstack_merger_list.1.linear_fc1.bias",
        "lm_head.weight",
    ],
)
def test_tensors_that_are_not_read_must_still_be_there(copied: Path, name: str) -> None:
    _keep(copied, lambda other: other != name)
    with pytest.raises(CheckpointError, match=f"1 missing: {name}"):
        TruncatedQwen3VL.load(identify(copied, "fl2va"), CPU, torch.float32)


def test_another_model_type_is_refused(copied: Path) -> None:
    path = copied / "text_encoder" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "model_type": "qwen2_vl"}))
    with pytest.raises(CheckpointError, match="model_type 'qwen2_vl' is not legal"):
        TruncatedQwen3VL.load(identify(copied, "fl2va"), CPU, torch.float32)
