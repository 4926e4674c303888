"""The transformer's configuration, against the released numbers of the model sheet."""

import math
from dataclasses import replace

import pytest
import torch

from minimax_h3.core.errors import CheckpointError
from minimax_h3.weights.dit_config import DiTConfig
from minimax_h3.weights.dit_shapes import DIT_FP32_PREFIXES, transformer_shapes
from minimax_h3.weights.key_maps import dit_from_diffusers, dit_from_official

RELEASED = DiTConfig(
    hidden_size=5376,
    num_layers=50,
    num_refiner_layers=2,
    num_heads=56,
    head_dim=128,
    ffn_dim=14336,
    text_dim=5120,
    freq_dim=256,
    time_hidden_dim=5376,
    time_out_dim=2688,
)


def test_released_counts() -> None:
    shapes = transformer_shapes(RELEASED)
    counts = {name: math.prod(shape) for name, shape in shapes.items()}
    assert sum(counts.values()) == 33_122_992_896
    island = [count for name, count in counts.items() if name.startswith(DIT_FP32_PREFIXES)]
    assert (len(island), sum(island)) == (12, 17_222_144)
    inv_freq_bytes = 4 * RELEASED.rope_freqs
    assert 2 * sum(counts.values()) + 2 * sum(island) + inv_freq_bytes == 66_280_430_144


def test_released_tensor_counts_per_layout() -> None:
    ours = {
        name: torch.empty(shape, device="meta")
        for name, shape in transformer_shapes(RELEASED).items()
    }
    assert len(dit_from_official(RELEASED).from_ours(ours)) == 535
    assert len(dit_from_diffusers().from_ours(ours)) == 638


def test_derived_widths() -> None:
    assert RELEASED.inner_dim == 7168
    assert RELEASED.adaln_dim == 96_768
    assert RELEASED.video_row_width == 96


def test_both_spellings_round_trip() -> None:
    odd = replace(RELEASED, norm_eps=2e-5, qk_norm_eps=3e-5, final_norm_eps=4e-5, num_layers=7)
    assert DiTConfig.from_official(odd.to_official()) == odd
    assert DiTConfig.from_diffusers(odd.to_diffusers()) == odd


def test_annotations_are_ignored_and_derived_widths_checked() -> None:
    config = {**RELEASED.to_official(), "_class_name": "MiniMaxH3DiTModel", "dtype": "bfloat16"}
    assert DiTConfig.from_official(config) == RELEASED
    with pytest.raises(CheckpointError, match="adaln_out_features 1 is not legal; legal: 96768"):
        DiTConfig.from_official({**config, "adaln_out_features": 1})


def test_official_epsilons_default_to_the_released_value() -> None:
    config = RELEASED.to_official()
    for key in ("norm_eps", "qk_norm_eps", "final_norm_eps"):
        del config[key]
    assert DiTConfig.from_official(config).norm_eps == 1e-5


@pytest.mark.parametrize("key", ["hidden_size", "ffn_hidden_size", "rope_inv_freq_len"])
def test_a_missing_official_key_is_named(key: str) -> None:
    config = RELEASED.to_official()
    del config[key]
    with pytest.raises(CheckpointError, match=f"missing keys: {key}"):
        DiTConfig.from_official(config)


def test_a_missing_diffusers_key_is_named() -> None:
    config = RELEASED.to_diffusers()
    del config["norm_eps"]
    with pytest.raises(CheckpointError, match="missing keys: norm_eps"):
        DiTConfig.from_diffusers(config)


def test_unknown_keys_are_named() -> None:
    with pytest.raises(CheckpointError, match="unknown keys: num_kv_heads"):
        DiTConfig.from_diffusers({**RELEASED.to_diffusers(), "num_kv_heads": 8})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", 0),
        ("num_layers", True),
        ("num_attention_heads", "56"),
        ("patch_size", [2, 2]),
        ("patch_size", [1, 2, 0]),
        ("norm_eps", 0),
        ("rope_theta", 500.0),
    ],
)
def test_bad_values_are_named(key: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=key):
        DiTConfig.from_official({**RELEASED.to_official(), key: value})


def test_rotary_width_must_fit_the_head() -> None:
    with pytest.raises(CheckpointError, match=r"head_dim: 64 is not legal.*legal: 96"):
        replace(RELEASED, head_dim=64)
