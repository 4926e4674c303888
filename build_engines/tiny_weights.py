"""Random tensors of the tiny checkpoint, with scales at which every part of the network matters.

A tensor's values depend on the seed, its component and its name alone.
"""

import zlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from build_engines import tiny_configs
from build_engines.autoencoders import audio_autoencoder, video_autoencoder
from minimax_h3.weights.dit_shapes import DIT_FP32_PREFIXES, transformer_shapes
from minimax_h3.weights.key_maps import dit_from_official, video_vae_from_official
from minimax_h3.weights.loader import build_on_meta
from minimax_h3.weights.random_scales import (
    Scale,
    audio_vae_scale,
    text_encoder_scale,
    transformer_scale,
    video_vae_scale,
)

Tensors = dict[str, Tensor]


def _fill(
    seed: int, component: str, shapes: Mapping[str, tuple[int, ...]], scale: Scale
) -> Tensors:
    """Normal values; `scale` gives (mean, standard deviation) per name and shape."""
    tensors: Tensors = {}
    for name, shape in shapes.items():
        rng = np.random.default_rng([seed, zlib.crc32(f"{component}.{name}".encode())])
        mean, deviation = scale(name, shape)
        values = mean + deviation * rng.standard_normal(shape)
        tensors[name] = torch.from_numpy(values.astype(np.float32))
    return tensors


def transformer(seed: int, partition: str) -> Tensors:
    """Official names, per-head interleaved qkv, bf16 with the fp32 tensors of the release."""
    config = tiny_configs.DIT
    ours = _fill(seed, f"transformer.{partition}", transformer_shapes(config), transformer_scale)
    ours = {
        name: tensor if name.startswith(DIT_FP32_PREFIXES) else tensor.bfloat16()
        for name, tensor in ours.items()
    }
    return dit_from_official(config).from_ours(ours)


def text_encoder(seed: int) -> Tensors:
    """Stock Qwen3-VL names, all layers, vision tower, final norm and head, in bf16."""
    config = Qwen3VLConfig(**tiny_configs.text_encoder())
    model = build_on_meta(lambda: Qwen3VLForConditionalGeneration(config))
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    filled = _fill(seed, "text_encoder", shapes, text_encoder_scale(tiny_configs.TEXT_LAYERS))
    return {name: tensor.bfloat16() for name, tensor in filled.items()}


def video_vae(seed: int, arguments: dict[str, object]) -> Tensors:
    """Official names, interleaved decoder qkv, gate-first w1, in fp32."""
    state = video_autoencoder(arguments).state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    ours = _fill(seed, "video_vae", shapes, video_vae_scale)
    vit = tiny_configs.video_vae_source()["vit_decoder_kwargs"]
    assert isinstance(vit, dict)
    heads, width = int(vit["heads"]), int(vit["heads"]) * int(vit["dim_head"])
    return video_vae_from_official(heads, width).from_ours(ours)


def audio_vae(seed: int, arguments: dict[str, object]) -> Tensors:
    """Official names with weight-norm pairs and the computed resampling filters, in fp32."""
    state = audio_autoencoder(arguments).state_dict()
    computed = {name: tensor.clone() for name, tensor in state.items() if not tensor.is_meta}
    shapes = {name: tuple(state[name].shape) for name in state if name not in computed}
    return _fill(seed, "audio_vae", shapes, audio_vae_scale) | computed
