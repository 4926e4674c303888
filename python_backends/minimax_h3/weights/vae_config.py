"""Constructor arguments of the two diffusers autoencoders, from either checkpoint layout.

Pure dictionaries: nothing here imports torch or diffusers.
"""

import math
from collections.abc import Mapping
from pathlib import Path

from minimax_h3.core.constants import (
    AUDIO_HOP_SAMPLES,
    AUDIO_ROW_WIDTH,
    AUDIO_SAMPLE_RATE_HZ,
    VAE_CLIP_FRAMES,
    VAE_SPATIAL_STRIDE,
    VAE_TEMPORAL_STRIDE,
    VIDEO_LATENT_CHANNELS,
)
from minimax_h3.core.errors import CheckpointError
from minimax_h3.weights.manifest import OFFICIAL, CheckpointManifest, Config

VAE_TOKEN_DROP = 3  # latents dropped once at the end of an encoded video
Arguments = dict[str, object]

# Entries of `video_vae/source/config.json` that have one value in the release; another value would
# be another network. Source: model sheet 4.1.
_VIDEO_FIXED: Mapping[str, object] = {
    "use_3d_conv": True,
    "use_vit_decoder": True,
    "causal_encoder": True,
    "causal_decoder": False,
    "use_t_isolated_gn": True,
    "zq_ch_encoder": None,
    "zq_ch_decoder": None,
    "num_res_blocks_decoder": None,
    "padding_mode_t": None,
    "shift_factor": 0.0,
    "scaling_factor": 1.0,
    "pixel_norm_type": "imagenet",
}
_VIT_FIXED: Mapping[str, object] = {
    "ffn_activation_fn": "silu",
    "ffn_use_gated": True,
    "norm_affine": True,
    "norm_type": "rms_norm",
    "qk_norm_affine": False,
    "qk_norm_type": "rms_norm",
}
# Not in any official file. Source: model sheet 4.1 and 4.2. A smaller network may state its own
# `norm_num_groups`, because its channels need not divide by the release's.
_VIDEO_UNSTATED: Mapping[str, object] = {
    "norm_num_groups": 32,
    "norm_eps": 1e-6,
    "decoder_num_register_tokens": 4,
    "decoder_ffn_mult": 4,
    "decoder_norm_eps": 1e-5,
}
_AUDIO_UNSTATED: Mapping[str, object] = {
    "num_attention_heads": 8,
    "resblock_kernel_sizes": [3, 7, 11],
    "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]],
}
_VIDEO_ARGUMENTS = (
    *("in_channels", "out_channels", "latent_channels", "block_out_channels", "layers_per_block"),
    *("spatial_downsample_factors", "temporal_downsample_factors", "norm_num_groups", "norm_eps"),
    *("spatial_padding_mode", "decoder_num_layers", "decoder_num_attention_heads"),
    *("decoder_attention_head_dim", "decoder_num_register_tokens", "decoder_ffn_mult"),
    *("decoder_rope_theta", "decoder_rope_dim_ratio", "decoder_norm_eps", "clip_length"),
    *("token_drop", "latents_mean", "latents_std"),
)
_AUDIO_ARGUMENTS = (
    *("encoder_dim", "encoder_rates", "latent_dim", "latent_channels", "num_attention_heads"),
    *("decoder_dim", "decoder_rates", "decoder_kernel_sizes", "resblock_kernel_sizes"),
    *("resblock_dilation_sizes", "sampling_rate", "latents_mean", "latents_std"),
)


class _Section:
    """A JSON object that names itself in errors."""

    def __init__(self, where: str, entries: object) -> None:
        if not isinstance(entries, Mapping):
            raise CheckpointError(f"{where}: missing or not an object")
        self.where = where
        self._entries = entries

    def __getitem__(self, key: str) -> object:
        if key not in self._entries:
            raise CheckpointError(f"{self.where}: missing key {key}")
        return self._entries[key]

    def number(self, key: str) -> int:
        value = self[key]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CheckpointError(f"{self.where}: {key} {value!r}; legal: a positive integer")
        return value

    def stated_number(self, key: str) -> dict[str, object]:
        """The number as an entry of its own, or nothing where the release's value stands."""
        return {key: self.number(key)} if key in self._entries else {}

    def numbers(self, key: str) -> list[int]:
        values = self[key]
        if not isinstance(values, list) or not values or not all(map(_is_count, values)):
            raise CheckpointError(f"{self.where}: {key} {values!r}; legal: positive integers")
        return list(values)

    def require(self, fixed: Mapping[str, object]) -> None:
        """Refuse another value; an absent key leaves the released value standing."""
        for key, legal in fixed.items():
            if key in self._entries and self._entries[key] != legal:
                raise CheckpointError(
                    f"{self.where}: {key} {self._entries[key]!r} is not legal; legal: {legal!r}"
                )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def video_vae_arguments(manifest: CheckpointManifest) -> Arguments:
    """Arguments of `AutoencoderKLMiniMaxH3`. Source: model sheet 4.1.

    Raises:
        CheckpointError: a key is missing, or names a network that this server does not have.
    """
    if manifest.layout == OFFICIAL:
        arguments = official_video_vae_arguments(
            manifest.configs["video_vae"],
            manifest.configs["video_vae_source"],
            manifest.root / "video_vae",
        )
    else:
        arguments = _diffusers(manifest, "video_vae", "vae", _VIDEO_ARGUMENTS)
    where = _Section(f"{manifest.root}: video autoencoder", arguments)
    _check_strides(where, VAE_SPATIAL_STRIDE, "spatial_downsample_factors")
    _check_strides(where, VAE_TEMPORAL_STRIDE, "temporal_downsample_factors")
    where.require(
        {
            "latent_channels": VIDEO_LATENT_CHANNELS,
            "clip_length": VAE_CLIP_FRAMES,
            "token_drop": VAE_TOKEN_DROP,
        }
    )
    _check_statistics(where, VIDEO_LATENT_CHANNELS)
    return arguments


def audio_vae_arguments(manifest: CheckpointManifest) -> Arguments:
    """Arguments of `AutoencoderKLMiniMaxH3Audio`. Source: model sheet 4.2.

    Raises:
        CheckpointError: a key is missing, or names a network that this server does not have.
    """
    if manifest.layout == OFFICIAL:
        arguments = official_audio_vae_arguments(
            manifest.configs["audio_vae"],
            manifest.configs["audio_vae_metadata"],
            manifest.root / "audio_vae",
        )
    else:
        arguments = _diffusers(manifest, "audio_vae", "audio_vae", _AUDIO_ARGUMENTS)
    where = _Section(f"{manifest.root}: audio autoencoder", arguments)
    _check_strides(where, AUDIO_HOP_SAMPLES, "encoder_rates")
    _check_strides(where, AUDIO_HOP_SAMPLES, "decoder_rates")
    where.require({"latent_channels": AUDIO_ROW_WIDTH, "sampling_rate": AUDIO_SAMPLE_RATE_HZ})
    _check_statistics(where, AUDIO_ROW_WIDTH)
    return arguments


def official_video_vae_arguments(
    wrapper_config: Config, source_config: Config, folder: Path
) -> Arguments:
    """Arguments from `config.json` and `source/config.json` of an official `video_vae` folder."""
    wrapper = _Section(str(folder / "config.json"), wrapper_config)
    source = _Section(f"{folder}: source config.json", source_config)
    vit = _Section(f"{source.where}: vit_decoder_kwargs", source["vit_decoder_kwargs"])
    source.require({**_VIDEO_FIXED, "embed_dim": source["z_channels"]})
    vit.require(_VIT_FIXED)
    width = source.number("ch")
    return {
        "in_channels": source.number("in_channels"),
        "out_channels": source.number("out_ch"),
        "latent_channels": source.number("z_channels"),
        "block_out_channels": [width * factor for factor in source.numbers("ch_mult")],
        "layers_per_block": source.number("num_res_blocks"),
        "spatial_downsample_factors": source.numbers("space_down"),
        "temporal_downsample_factors": source.numbers("time_down"),
        "spatial_padding_mode": source["padding_mode"],
        "decoder_num_layers": vit.number("num_layers"),
        "decoder_num_attention_heads": vit.number("heads"),
        "decoder_attention_head_dim": vit.number("dim_head"),
        "decoder_rope_theta": vit["rope_theta"],
        "decoder_rope_dim_ratio": vit["rope_dim_ratio"],
        "clip_length": wrapper.number("vae_clip_length"),
        "token_drop": wrapper["vae_token_drop"],
        "latents_mean": wrapper["latents_mean"],
        "latents_std": wrapper["latents_std"],
        **_VIDEO_UNSTATED,
        **source.stated_number("norm_num_groups"),
    }


def official_audio_vae_arguments(
    wrapper_config: Config, metadata_config: Config, folder: Path
) -> Arguments:
    """Arguments from `config.json` and `metadata.json` of an official `audio_vae` folder."""
    wrapper = _Section(str(folder / "config.json"), wrapper_config)
    metadata = _Section(str(folder / "metadata.json"), metadata_config)
    stated = _Section(f"{metadata.where}: metadata", metadata["metadata"])
    kwargs = _Section(f"{stated.where}.kwargs", stated["kwargs"])
    kwargs.require({"decoder_type": "bigvgan", "attn_proj": True})
    wrapper.require(
        {
            "latent_channels": kwargs["vae_latent_channels"],
            "sample_rate": kwargs["sample_rate"],
        }
    )
    rates = kwargs.numbers("decoder_rates")
    return {
        "encoder_dim": kwargs.number("encoder_dim"),
        "encoder_rates": kwargs.numbers("encoder_rates"),
        "latent_dim": kwargs.number("latent_dim"),
        "latent_channels": kwargs.number("vae_latent_channels"),
        "decoder_dim": kwargs.number("decoder_dim"),
        "decoder_rates": rates,
        "decoder_kernel_sizes": [2 * rate - rate % 2 for rate in rates],
        "sampling_rate": kwargs.number("sample_rate"),
        "latents_mean": wrapper["latents_mean"],
        "latents_std": wrapper["latents_std"],
        **_AUDIO_UNSTATED,
    }


def _diffusers(
    manifest: CheckpointManifest, component: str, folder: str, known: tuple[str, ...]
) -> Arguments:
    where = f"{manifest.root / folder / 'config.json'}"
    config = manifest.configs[component]
    unknown = sorted(key for key in config if key not in known and not key.startswith("_"))
    if unknown:
        raise CheckpointError(f"{where}: unknown keys: {', '.join(unknown)}")
    section = _Section(where, config)
    return {key: section[key] for key in known}


def _check_strides(where: _Section, legal: int, key: str) -> None:
    stride = math.prod(where.numbers(key))
    if stride != legal:
        raise CheckpointError(f"{where.where}: {key} multiply to {stride}; legal: {legal}")


def _check_statistics(where: _Section, channels: int) -> None:
    for key in ("latents_mean", "latents_std"):
        values = where[key]
        if (
            not isinstance(values, list)
            or len(values) != channels
            or not all(isinstance(value, int | float) and math.isfinite(value) for value in values)
            or (key == "latents_std" and not all(value > 0 for value in values))
        ):
            raise CheckpointError(
                f"{where.where}: {key} {str(values)[:80]}; legal: {channels} finite numbers, "
                "positive for latents_std"
            )
