"""Names and row orders, against a head-by-head re-implementation of model sheet section 6."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from minimax_h3.weights.key_maps import (
    DeinterleaveHeads,
    KeyMap,
    Rule,
    dit_from_diffusers,
    dit_keys,
    rope_inv_freq,
    text_encoder_from_stock,
    unchanged,
    video_vae_keys,
)
from minimax_h3.weights.manifest import CheckpointManifest, identify

Tensors = dict[str, Tensor]


def _read(folder: Path) -> Tensors:
    return {
        name: value
        for file in sorted(folder.glob("*.safetensors"))
        for name, value in load_file(file).items()
    }


def _same(first: Tensors, second: Tensors) -> None:
    assert set(first) == set(second)
    for name, value in first.items():
        assert value.dtype == second[name].dtype, name
        assert torch.equal(value, second[name]), name


@pytest.fixture(scope="module")
def official(tiny_checkpoint: Path) -> CheckpointManifest:
    return identify(tiny_checkpoint, "fl2va")


@pytest.fixture(scope="module")
def diffusers(tiny_diffusers_checkpoint: Path) -> CheckpointManifest:
    return identify(tiny_diffusers_checkpoint, "fl2va")


def _by_role(stored: Tensor, heads: int) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Walk the rows as the sheet states them: head 0's q, k, v, then head 1's."""
    size = stored.shape[0] // heads // 3
    q, k, v = [], [], []
    for head in range(heads):
        start = head * 3 * size
        q.append(stored[start : start + size])
        k.append(stored[start + size : start + 2 * size])
        v.append(stored[start + 2 * size : start + 3 * size])
    return q, k, v


def _halves_exchanged(stored: Tensor) -> Tensor:
    half = stored.shape[0] // 2
    return torch.cat([stored[half:], stored[:half]])


_DIT_NAMES = [
    (r"^video_patch_proj\.", "proj_in."),
    (r"^audio_patch_proj\.", "audio_proj_in."),
    (r"^condition_proj\.", "context_embedder."),
    (r"^time_embedder\.proj_in\.", "time_embedder.linear_1."),
    (r"^time_embedder\.proj_out\.", "time_embedder.linear_2."),
    (r"^blocks\.", "transformer_blocks."),
    (r"^token_refiner\.blocks\.", "token_refiner.refiner_blocks."),
    (r"^final_layer\.norm\.", "norm_out.norm."),
    (r"^final_layer\.adaln_proj\.linear\.", "norm_out.linear."),
    (r"^final_layer\.video_out\.", "proj_out."),
    (r"^final_layer\.audio_out\.", "audio_proj_out."),
    (r"\.attn\.q_norm\.", ".attn.norm_q."),
    (r"\.attn\.k_norm\.", ".attn.norm_k."),
    (r"\.attn\.out_proj\.", ".attn.to_out.0."),
    (r"\.mlp\.fc1\.", ".ff.net.0.proj."),
    (r"\.mlp\.fc2\.", ".ff.net.2."),
]
_VAE_NAMES = [
    (r"^encoder\.down\.(\d+)\.block\.(\d+)\.", r"encoder.down_blocks.\1.resnets.\2."),
    (r"^encoder\.down\.(\d+)\.downsample\.", r"encoder.down_blocks.\1.downsamplers.0."),
    (r"\.nin_shortcut\.", ".conv_shortcut."),
    (r"^decoder\.x_embedder\.", "decoder.proj_in."),
    (r"\.attn\.to_out\.", ".attn.to_out.0."),
    (r"\.ff\.w1\.", ".ff.net.0.proj."),
    (r"\.ff\.w2\.", ".ff.net.2."),
]


def _oracle(
    stored: Tensors,
    names: list[tuple[str, str]],
    fused: str,
    swapped: str,
    heads: int,
    dropped: str,
) -> Tensors:
    """Official -> diffusers, written from the sheet alone."""
    result: Tensors = {}
    for name, value in stored.items():
        if name == dropped:
            continue
        if fused in name:
            for role, rows in zip("qkv", _by_role(value, heads), strict=True):
                key = name.replace(fused, f".attn.to_{role}.")
                for pattern, replacement in names:
                    key = re.sub(pattern, replacement, key)
                result[key] = torch.cat(rows)
            continue
        key = name
        for pattern, replacement in names:
            key = re.sub(pattern, replacement, key)
        result[key] = _halves_exchanged(value) if swapped in name else value
    return result


def test_transformer_against_the_sheet(
    official: CheckpointManifest, diffusers: CheckpointManifest
) -> None:
    stored = _read(official.root / "transformer")
    expected = _oracle(stored, _DIT_NAMES, ".attn.qkv_proj.", ".mlp.fc1.", 2, "rope.inv_freq")
    _same(_read(diffusers.root / "transformer"), expected)


def test_video_vae_against_the_sheet(
    official: CheckpointManifest, diffusers: CheckpointManifest
) -> None:
    stored = _read(official.root / "video_vae" / "source")
    expected = _oracle(stored, _VAE_NAMES, ".attn.to_qkv.", ".ff.w1.", 2, "decoder.mask_token")
    _same(_read(diffusers.root / "vae"), expected)


def test_video_vae_stores_queries_keys_and_values_once(official: CheckpointManifest) -> None:
    stored = official.weights["video_vae"].tensors
    assert [name for name in stored if name.endswith(("to_q.weight", "to_k.weight"))] == []
    assert sum(name.endswith("to_qkv.weight") for name in stored) == 2


def test_audio_vae_and_text_encoder_keep_their_names(
    official: CheckpointManifest, diffusers: CheckpointManifest
) -> None:
    for folder in ("audio_vae", "text_encoder"):
        _same(_read(diffusers.root / folder), _read(official.root / folder))


def test_our_rows_are_contiguous_and_gate_first(official: CheckpointManifest) -> None:
    stored = _read(official.root / "transformer")
    ours = dit_keys(official).to_ours(stored)
    for theirs, name in (
        ("blocks.1", "blocks.1"),
        ("token_refiner.blocks.0", "refiner.blocks.0"),
    ):
        q, k, v = _by_role(stored[f"{theirs}.attn.qkv_proj.weight"], 2)
        assert torch.equal(ours[f"{name}.attn.qkv.weight"], torch.cat([*q, *k, *v]))
        assert torch.equal(ours[f"{name}.mlp.fc1.weight"], stored[f"{theirs}.mlp.fc1.weight"])
        # A permutation that went unnoticed would be this far off.
        difference = ours[f"{name}.attn.qkv.weight"] - stored[f"{theirs}.attn.qkv_proj.weight"]
        assert difference.float().norm() > stored[f"{theirs}.attn.qkv_proj.weight"].float().norm()


def test_both_layouts_become_the_same_tensors(
    official: CheckpointManifest, diffusers: CheckpointManifest
) -> None:
    first = dit_keys(official).to_ours(_read(official.root / "transformer"))
    _same(first, dit_from_diffusers().to_ours(_read(diffusers.root / "transformer")))
    video = video_vae_keys(official).to_ours(_read(official.root / "video_vae" / "source"))
    _same(video, video_vae_keys(diffusers).to_ours(_read(diffusers.root / "vae")))


@pytest.mark.parametrize("folder", ["transformer", "video_vae/source", "audio_vae", "text_encoder"])
def test_official_round_trip(official: CheckpointManifest, folder: str) -> None:
    maps = {
        "transformer": dit_keys(official),
        "video_vae/source": video_vae_keys(official),
        "audio_vae": unchanged(),
        "text_encoder": text_encoder_from_stock(),
    }
    stored = _read(official.root / folder)
    ours = maps[folder].to_ours(stored)
    back = maps[folder].from_ours(ours)
    _same(back, stored)
    _same(maps[folder].to_ours(back), ours)


@pytest.mark.parametrize("folder", ["transformer", "vae"])
def test_diffusers_round_trip(diffusers: CheckpointManifest, folder: str) -> None:
    key_map = {"transformer": dit_keys(diffusers), "vae": video_vae_keys(diffusers)}[folder]
    stored = _read(diffusers.root / folder)
    _same(key_map.from_ours(key_map.to_ours(stored)), stored)


def test_text_encoder_names(official: CheckpointManifest) -> None:
    ours = text_encoder_from_stock().to_ours(_read(official.root / "text_encoder"))
    assert "language_model.layers.49.mlp.up_proj.weight" in ours
    assert "visual.deepstack_merger_list.2.norm.weight" in ours
    assert "lm_head.weight" in ours


def test_interleave_of_three_heads_by_hand() -> None:
    stored = torch.tensor([[0], [10], [20], [1], [11], [21], [2], [12], [22]])
    [ours] = DeinterleaveHeads(3).to_ours([stored])
    assert ours.flatten().tolist() == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    split = DeinterleaveHeads(3, split=True)
    assert [part.flatten().tolist() for part in split.to_ours([stored])] == [
        [0, 1, 2],
        [10, 11, 12],
        [20, 21, 22],
    ]
    assert torch.equal(split.from_ours(split.to_ours([stored]))[0], stored)


def test_rotary_frequencies(official: CheckpointManifest) -> None:
    stored = _read(official.root / "transformer")["rope.inv_freq"]
    expected = [10000 ** (-i / 16) for i in range(16)]
    assert stored.dtype == torch.float32
    assert torch.allclose(stored.double(), torch.tensor(expected).double(), rtol=1e-6, atol=0)
    assert torch.equal(stored, rope_inv_freq(official.dit_config))


def test_a_name_without_a_rule_is_an_error() -> None:
    key_map = KeyMap([Rule(("a.{p}",), ("b.{p}",))])
    with pytest.raises(KeyError, match=r"no rule for b\.scale"):
        key_map.groups(["b.weight", "b.scale"])
