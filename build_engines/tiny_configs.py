"""Configuration files of the tiny checkpoint: the released structure at toy widths."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from minimax_h3.core.constants import AUDIO_FLOW_SHIFT, VIDEO_FLOW_SHIFT
from minimax_h3.weights.dit_config import DiTConfig

Json = dict[str, object]

TEXT_LAYERS = 51  # one more than is read, so that loading has something to leave out
TEXT_WIDTH = 24
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
RELEASED_SHIFTS: Mapping[str, float] = MappingProxyType(
    {"video": VIDEO_FLOW_SHIFT, "audio": AUDIO_FLOW_SHIFT}
)
BYTE_TOKENS = 256  # token id = byte value; special tokens follow

# Statistics of the released video latents. Source: model sheet, appendix B.
VIDEO_LATENTS_MEAN = (
    *(0.858090341091156, -0.9606591463088989, 1.0661640167236328, -0.5090325474739075),
    *(-0.2727581858634949, -1.3675414323806763, -0.2553254961967468, -0.26907554268836975),
    *(-0.5376840829849243, -0.0464097298681736, 0.6657370328903198, 0.19690127670764923),
    *(-0.5460608005523682, -0.4035342037677765, -0.23683024942874908, 0.25928452610969543),
    *(-0.30133944749832153, 0.211341992020607, -1.1206848621368408, 0.3581933379173279),
    *(-0.04225143790245056, 0.2604829967021942, 0.22864092886447906, 0.7056031823158264),
)
VIDEO_LATENTS_STD = (
    *(1.2223774194717407, 1.2767263650894165, 1.6831774711608887, 1.7549455165863037),
    *(1.5636216402053833, 2.194143533706665, 0.9653137922286987, 1.0569885969161987),
    *(0.841948926448822, 0.7729952931404114, 1.8955937623977661, 0.946841835975647),
    *(0.7996809482574463, 0.44988900423049927, 0.7197399735450745, 0.6936293244361877),
    *(2.961095094680786, 2.7694199085235596, 3.0496184825897217, 2.1088054180145264),
    *(3.276226282119751, 3.1627357006073, 2.2816812992095947, 2.6127843856811523),
)

DIT = DiTConfig(
    hidden_size=48,
    num_layers=2,
    num_refiner_layers=2,
    num_heads=2,
    head_dim=128,
    ffn_dim=96,
    text_dim=TEXT_WIDTH,
    freq_dim=32,
    time_hidden_dim=48,
    time_out_dim=32,
)


SMALL_CANVAS: Json = {"short_edge": 96, "max_area": 96 * 168, "reference_short_edge": 256}
"""The released canvas rule at an eighth of each side, for machines without a GPU."""


def special_id(token: str) -> int:
    """Id of a special token."""
    return BYTE_TOKENS + SPECIAL_TOKENS.index(token)


def model_index(
    partition: str, canvas: Json | None = None, shifts: Mapping[str, float] = RELEASED_SHIFTS
) -> Json:
    """`model_index.json` of an official partition. Source: model sheet 2.1.

    Args:
        partition: FL2VA or Ref2VA.
        canvas: a canvas rule that the checkpoint states; None states none, like the release.
        shifts: of the sigma schedule, by `video` and `audio`.
    """
    tasks = ["t2va", "fl2va"] if partition == "FL2VA" else ["ref2va"]
    stated: Json = {} if canvas is None else {"canvas": canvas}
    return {
        "_class_name": "MiniMaxH3Pipeline",
        "_diffusers_version": "0.32.2",
        "text_encoder": ["transformers", "Qwen3VLForConditionalGeneration"],
        "tokenizer": ["transformers", "Qwen2TokenizerFast"],
        "processor": ["transformers", "Qwen3VLProcessor"],
        "video_vae": ["diffusers_modules", "MiniMaxH3VideoVAE"],
        "audio_vae": ["diffusers_modules", "MiniMaxH3AudioVAE"],
        "transformer": ["diffusers_modules", "MiniMaxH3DiTModel"],
        "scheduler": None,
        "_minimax_h3": {
            "schema_version": 1,
            "partition": partition.lower(),
            "tasks": tasks,
            "task_aliases": {},
            "sigma_shift_scales": dict(shifts),
            **stated,
        },
    }


def transformer() -> Json:
    """`transformer/config.json`."""
    return {"_class_name": "MiniMaxH3DiTModel", **DIT.to_official()}


def text_encoder() -> Json:
    """`text_encoder/config.json`: Qwen3-VL with a vision tower. Source: model sheet section 5."""
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "image_token_id": special_id("<|image_pad|>"),
        "video_token_id": special_id("<|video_pad|>"),
        "vision_start_token_id": special_id("<|vision_start|>"),
        "vision_end_token_id": special_id("<|vision_end|>"),
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "qwen3_vl_text",
            "attention_bias": False,
            "dtype": "bfloat16",
            "head_dim": 16,
            "hidden_act": "silu",
            "hidden_size": TEXT_WIDTH,
            "intermediate_size": 32,
            "max_position_embeddings": 262144,
            "num_attention_heads": 2,
            "num_hidden_layers": TEXT_LAYERS,
            "num_key_value_heads": 1,
            "rms_norm_eps": 1e-6,
            "rope_scaling": {
                "mrope_interleaved": True,
                "mrope_section": [4, 2, 2],
                "rope_type": "default",
            },
            "rope_theta": 5000000,
            "vocab_size": BYTE_TOKENS + len(SPECIAL_TOKENS),
        },
        "vision_config": {
            "model_type": "qwen3_vl",
            "deepstack_visual_indexes": [0, 1, 2],
            "depth": 4,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 16,
            "in_channels": 3,
            "intermediate_size": 24,
            "num_heads": 2,
            "num_position_embeddings": 16,
            "out_hidden_size": TEXT_WIDTH,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
    }


def video_vae() -> Json:
    """`video_vae/config.json`."""
    return {
        "_class_name": "MiniMaxH3VideoVAE",
        "latent_channels": 24,
        "latents_mean": list(VIDEO_LATENTS_MEAN),
        "latents_std": list(VIDEO_LATENTS_STD),
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


def video_vae_source() -> Json:
    """`video_vae/source/config.json`."""
    return {
        "_class_name": "AutoencoderKLLegacy",
        "in_channels": 3,
        "out_ch": 3,
        "ch": 32,
        "ch_mult": [1, 1, 1, 1, 2],
        "num_res_blocks": 1,
        "num_res_blocks_decoder": None,
        "embed_dim": 24,
        "z_channels": 24,
        "space_down": [2, 2, 2, 2, 1],
        "time_down": [1, 2, 2, 1, 1],
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
            "dim_head": 16,
            "ffn_activation_fn": "silu",
            "ffn_use_gated": True,
            "heads": 2,
            "norm_affine": True,
            "norm_type": "rms_norm",
            "num_layers": 2,
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


def audio_vae(seed: int) -> Json:
    """`audio_vae/config.json`; the statistics are invented, in the range of the released ones."""
    rng = np.random.default_rng([seed, 1])
    return {
        "_class_name": "MiniMaxH3AudioVAE",
        "latent_channels": 32,
        "latents_mean": rng.uniform(-0.4, 0.4, 32).round(6).tolist(),
        "latents_std": rng.uniform(1.5, 2.8, 32).round(6).tolist(),
        "output_channel": 2,
        "sample_rate": 32000,
        "source_config_path": "config.yaml",
        "source_metadata_path": "metadata.json",
        "source_safetensors_path": "model.safetensors",
    }


def audio_vae_metadata() -> Json:
    """`audio_vae/metadata.json`. Seven halvings need 128 channels, five doublings make 64."""
    kwargs = {
        "attn_proj": True,
        "decoder_dim": 128,
        "decoder_rates": [5, 5, 2, 2, 2, 2, 2],
        "decoder_type": "bigvgan",
        "encoder_dim": 2,
        "encoder_rates": [2, 4, 4, 5, 5],
        "latent_dim": 64,
        "sample_rate": 32000,
        "vae_latent_channels": 32,
    }
    return {"metadata": {"kwargs": kwargs}}


AUDIO_VAE_YAML = """\
model_config:
  sr: 32000
  decoder_dim: 128
  audio_channel: 1
  vae_latent_channels: 32
"""
