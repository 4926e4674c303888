"""Constructor arguments of the autoencoders, from both layouts."""

from pathlib import Path

import pytest

from minimax_h3.core.errors import CheckpointError
from minimax_h3.weights.manifest import identify
from minimax_h3.weights.vae_config import audio_vae_arguments, video_vae_arguments


@pytest.mark.parametrize("arguments_of", [video_vae_arguments, audio_vae_arguments])
def test_both_layouts_agree(
    tiny_checkpoint: Path, tiny_diffusers_checkpoint: Path, arguments_of
) -> None:
    official = arguments_of(identify(tiny_checkpoint, "fl2va"))
    diffusers = arguments_of(identify(tiny_diffusers_checkpoint, "fl2va"))
    assert official == diffusers


def test_released_facts_that_no_official_file_states(tiny_checkpoint: Path) -> None:
    video = video_vae_arguments(identify(tiny_checkpoint, "fl2va"))
    assert video["norm_num_groups"] == 32
    assert video["block_out_channels"] == [32, 32, 32, 32, 64]
    audio = audio_vae_arguments(identify(tiny_checkpoint, "fl2va"))
    assert audio["decoder_kernel_sizes"] == [9, 9, 4, 4, 4, 4, 4]
    assert audio["num_attention_heads"] == 8


def test_a_smaller_network_may_state_its_groups(editable) -> None:
    editable.edit_json(SOURCE, lambda config: config.update(norm_num_groups=8))
    assert video_vae_arguments(identify(editable.root, "fl2va"))["norm_num_groups"] == 8


VIDEO = "video_vae/config.json"
SOURCE = "video_vae/source/config.json"
AUDIO = "audio_vae/config.json"


@pytest.mark.parametrize(
    ("file", "change", "named"),
    [
        (SOURCE, {"use_vit_decoder": False}, "use_vit_decoder False"),
        (SOURCE, {"causal_encoder": False}, "causal_encoder False"),
        (SOURCE, {"scaling_factor": 0.18}, "scaling_factor 0.18"),
        (SOURCE, {"embed_dim": 12}, "embed_dim 12"),
        (SOURCE, {"ch": "32"}, "ch '32'"),
        (SOURCE, {"norm_num_groups": 0}, "norm_num_groups 0"),
        (SOURCE, {"space_down": [2, 2, 2, 1, 1]}, "multiply to 8; legal: 16"),
        (SOURCE, {"time_down": [1, 1, 2, 1, 1]}, "multiply to 2; legal: 4"),
        (SOURCE, {"z_channels": 16, "embed_dim": 16}, "latent_channels 16"),
        (SOURCE, {"vit_decoder_kwargs": None}, "vit_decoder_kwargs: missing or not an object"),
        (VIDEO, {"vae_clip_length": 16}, "clip_length 16"),
        (VIDEO, {"vae_token_drop": 0}, "token_drop 0"),
        (VIDEO, {"latents_std": [1.0] * 23}, "latents_std"),
        (VIDEO, {"latents_std": [0.0] * 24}, "latents_std"),
        (VIDEO, {"latents_mean": [float("nan")] * 24}, "latents_mean"),
        (AUDIO, {"sample_rate": 16000}, "sample_rate 16000"),
        (AUDIO, {"latent_channels": 16}, "latent_channels 16"),
    ],
)
def test_another_network_is_refused(editable, file: str, change: dict, named: str) -> None:
    editable.edit_json(file, lambda config: config.update(change))
    manifest = identify(editable.root, "fl2va")
    with pytest.raises(CheckpointError, match=named):
        (audio_vae_arguments if file == AUDIO else video_vae_arguments)(manifest)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"decoder_type": "hifigan"}, "decoder_type 'hifigan'"),
        ({"attn_proj": False}, "attn_proj False"),
        ({"decoder_rates": [5, 5, 2, 2, 2, 2]}, "decoder_rates multiply to 400"),
        ({"encoder_rates": [2, 4, 4, 5]}, "encoder_rates multiply to 160"),
    ],
)
def test_another_audio_network_is_refused(editable, change: dict, named: str) -> None:
    editable.edit_json(
        "audio_vae/metadata.json", lambda content: content["metadata"]["kwargs"].update(change)
    )
    with pytest.raises(CheckpointError, match=named):
        audio_vae_arguments(identify(editable.root, "fl2va"))


@pytest.mark.parametrize("key", ["vae_clip_length", "latents_mean"])
def test_a_missing_key_is_named(editable, key: str) -> None:
    editable.edit_json(VIDEO, lambda config: config.pop(key))
    with pytest.raises(CheckpointError, match=f"missing key {key}"):
        video_vae_arguments(identify(editable.root, "fl2va"))
