"""The two small autoencoders: the released networks at small widths, as official configuration."""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio
from torch import nn

from minimax_h3.core.constants import AUDIO_ROW_WIDTH, VIDEO_LATENT_CHANNELS
from minimax_h3.weights.vae_config import (
    Arguments,
    official_audio_vae_arguments,
    official_video_vae_arguments,
)

Json = dict[str, object]

# Latents begin with little noise, or the decoder would hear and see nothing else for a while.
_LOG_STD = -3.0
_LAYER_SCALE = 0.3  # released training starts near 0, which costs a short training its first minute


def video_config(mean: Sequence[float], std: Sequence[float]) -> Json:
    """`video_vae/config.json`."""
    return {
        "_class_name": "MiniMaxH3VideoVAE",
        "latent_channels": VIDEO_LATENT_CHANNELS,
        "latents_mean": list(mean),
        "latents_std": list(std),
        "source_class_name": "AutoencoderKLLegacy",
        "source_path": "source",
        "source_safetensors_path": "model.safetensors",
        "vae_clip_length": 17,
        "vae_token_drop": 3,
        "vae_tile_size": 256,
        "vae_tile_overlap_min": 64,
        "vae_encoder_tiling": True,
        "vae_decoder_tiling": True,
        "vae_parallel_tiling": False,
    }


def video_source_config() -> Json:
    """`video_vae/source/config.json`; it states the norm's groups: 24 channels have no 32."""
    return {
        "_class_name": "AutoencoderKLLegacy",
        "in_channels": 3,
        "out_ch": 3,
        "ch": 8,
        "ch_mult": [2, 3, 4, 6, 6, 6],
        "norm_num_groups": 8,
        "num_res_blocks": 1,
        "num_res_blocks_decoder": None,
        "embed_dim": VIDEO_LATENT_CHANNELS,
        "z_channels": VIDEO_LATENT_CHANNELS,
        "space_down": [2, 2, 2, 2, 1, 1],
        "time_down": [1, 2, 2, 1, 1, 1],
        "space_up": None,
        "time_up": None,
        "use_3d_conv": True,
        "zq_ch_encoder": None,
        "zq_ch_decoder": None,
        "padding_mode": "reflect",
        "padding_mode_t": None,
        "use_t_isolated_gn": True,
        "causal_encoder": True,
        "causal_decoder": False,
        "use_vit_decoder": True,
        "vit_decoder_kwargs": {
            "dim_head": 64,
            "ffn_activation_fn": "silu",
            "ffn_use_gated": True,
            "heads": 4,
            "norm_affine": True,
            "norm_type": "rms_norm",
            "num_layers": 4,
            "qk_norm_affine": False,
            "qk_norm_type": "rms_norm",
            "rope_dim_ratio": 0.75,
            "rope_theta": 100.0,
        },
        "pixel_norm_type": "imagenet",
        "shift_factor": 0.0,
        "scaling_factor": 1.0,
        "vae_ratio": 16,
        "vae_ratio_t": 4,
    }


def audio_config(mean: Sequence[float], std: Sequence[float]) -> Json:
    """`audio_vae/config.json`."""
    return {
        "_class_name": "MiniMaxH3AudioVAE",
        "latent_channels": AUDIO_ROW_WIDTH,
        "latents_mean": list(mean),
        "latents_std": list(std),
        "output_channel": 2,
        "sample_rate": 32000,
        "source_config_path": "config.yaml",
        "source_metadata_path": "metadata.json",
        "source_safetensors_path": "model.safetensors",
    }


def audio_metadata() -> Json:
    """`audio_vae/metadata.json`. Seven halvings need 128 channels at the least."""
    kwargs = {
        "attn_proj": True,
        "decoder_dim": 128,
        "decoder_rates": [5, 5, 2, 2, 2, 2, 2],
        "decoder_type": "bigvgan",
        "encoder_dim": 4,
        "encoder_rates": [2, 4, 4, 5, 5],
        "latent_dim": 128,
        "sample_rate": 32000,
        "vae_latent_channels": AUDIO_ROW_WIDTH,
    }
    return {"metadata": {"kwargs": kwargs}}


def video_arguments(mean: Sequence[float] = (), std: Sequence[float] = ()) -> Arguments:
    """Arguments of diffusers' class; without statistics the latents are not normalised."""
    mean, std = mean or [0.0] * VIDEO_LATENT_CHANNELS, std or [1.0] * VIDEO_LATENT_CHANNELS
    config = video_config(mean, std)
    return official_video_vae_arguments(config, video_source_config(), Path("video_vae"))


def audio_arguments(mean: Sequence[float] = (), std: Sequence[float] = ()) -> Arguments:
    """Arguments of diffusers' class; without statistics the latents are not normalised."""
    mean, std = mean or [0.0] * AUDIO_ROW_WIDTH, std or [1.0] * AUDIO_ROW_WIDTH
    config = audio_config(mean, std)
    return official_audio_vae_arguments(config, audio_metadata(), Path("audio_vae"))


def new_video_vae(seed: int) -> Any:
    """An untrained video autoencoder with fp32 parameters on the CPU."""
    torch.manual_seed(seed)
    module = AutoencoderKLMiniMaxH3(**video_arguments())
    for block in module.decoder.transformer_blocks:
        block.attn.set_attention_backend("native")
        nn.init.constant_(block.scale1, _LAYER_SCALE)
        nn.init.constant_(block.scale2, _LAYER_SCALE)
    nn.init.normal_(module.decoder.register_tokens, std=0.02)
    nn.init.constant_(module.quant_conv.bias[VIDEO_LATENT_CHANNELS:], 2 * _LOG_STD)
    return module


def new_audio_vae(seed: int) -> Any:
    """An untrained audio autoencoder with fp32 parameters on the CPU."""
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        # The checkpoint stores weight-norm pairs under the names of torch's older function.
        warnings.filterwarnings("ignore", message=".*weight_norm.*", category=FutureWarning)
        module = AutoencoderKLMiniMaxH3Audio(**audio_arguments())
    _keep_level(module)
    nn.init.constant_(module.logs_proj.bias, _LOG_STD)
    return module


@torch.no_grad()
def _keep_level(module: Any) -> None:
    """Let the path between wave and latents keep its level.

    torch draws convolutions that shrink a signal by the root of 3; over the fifteen of this path
    only their biases would be left of it.
    """
    encoder, decoder = module.encoder.block, module.decoder
    strided = [block.block[-1] for block in encoder if hasattr(block, "block")]
    normed = [encoder[0], *strided, encoder[-1], decoder.conv_pre, decoder.conv_post]
    normed += [up[0] for up in decoder.ups]
    for conv in normed:
        conv.weight_g.mul_(math.sqrt(3))
    for conv in (module.mean_proj, module.dec_in_proj):
        conv.weight.mul_(math.sqrt(3))
    for conv in (*normed, module.mean_proj, module.dec_in_proj):
        if conv.bias is not None:
            conv.bias.zero_()
