"""Random tensors of the tiny checkpoint, with scales at which every part of the network matters.

A tensor's values depend on the seed, its component and its name alone.
"""

import math
import zlib
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from build_engines import tiny_configs
from build_engines.autoencoders import audio_autoencoder, video_autoencoder
from minimax_h3.weights.dit_shapes import DIT_FP32_PREFIXES, transformer_shapes
from minimax_h3.weights.key_maps import dit_from_official, video_vae_from_official
from minimax_h3.weights.loader import build_on_meta

Tensors = dict[str, Tensor]
Scale = Callable[[str, tuple[int, ...]], tuple[float, float]]


def _fan_in(shape: tuple[int, ...]) -> int:
    return max(math.prod(shape[1:]), 1)


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

    def scale(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            return 2.0, 0.1  # sharp enough that rows choose, or every row would see one average
        if "norm" in name:
            return 1.0, 0.1
        if name.endswith("adaln.bias"):
            return 0.0, 0.3  # shift, scale and gate away from zero, or blocks would do nothing
        if name.endswith("bias"):
            return 0.0, 0.05
        return 0.0, 1.0 / math.sqrt(_fan_in(shape))

    ours = _fill(seed, f"transformer.{partition}", transformer_shapes(config), scale)
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
    residual = 1.0 / math.sqrt(2 * tiny_configs.TEXT_LAYERS)

    def scale(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
        if "norm" in name and name.endswith("weight"):
            return 1.0, 0.1
        if name.endswith("bias"):
            return 0.0, 0.05
        if "embed_tokens" in name:
            return 0.0, 1.0
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            return 0.0, 2.0 * residual / math.sqrt(_fan_in(shape))
        return 0.0, 1.0 / math.sqrt(_fan_in(shape))

    filled = _fill(seed, "text_encoder", shapes, scale)
    return {name: tensor.bfloat16() for name, tensor in filled.items()}


def video_vae(seed: int, arguments: dict[str, object]) -> Tensors:
    """Official names, interleaved decoder qkv, gate-first w1, in fp32."""
    state = video_autoencoder(arguments).state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}

    def scale(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
        if ".scale" in name:
            return 0.5, 0.1  # a LayerScale near zero would leave attention untested
        if "norm" in name and name.endswith("weight"):
            return 1.0, 0.1
        if name.endswith("bias"):
            return 0.0, 0.05
        if name == "decoder.register_tokens":
            return 0.0, 1.0
        if name == "decoder.proj_out.weight":
            return 0.0, 0.8 / math.sqrt(_fan_in(shape))
        return 0.0, 1.0 / math.sqrt(_fan_in(shape))

    ours = _fill(seed, "video_vae", shapes, scale)
    vit = tiny_configs.video_vae_source()["vit_decoder_kwargs"]
    assert isinstance(vit, dict)
    heads, width = int(vit["heads"]), int(vit["heads"]) * int(vit["dim_head"])
    return video_vae_from_official(heads, width).from_ours(ours)


def audio_vae(seed: int, arguments: dict[str, object]) -> Tensors:
    """Official names with weight-norm pairs and the computed resampling filters, in fp32."""
    state = audio_autoencoder(arguments).state_dict()
    computed = {name: tensor.clone() for name, tensor in state.items() if not tensor.is_meta}
    computed |= {
        name: torch.zeros(tensor.shape)
        for name, tensor in state.items()
        if name.endswith("zero_k_bias")
    }
    shapes = {name: tuple(state[name].shape) for name in state if name not in computed}

    def scale(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
        if name == "decoder.conv_post.weight_g":
            return 0.05, 0.0  # sound of about -25 dB: far from silence and from clipping
        if name.startswith("decoder.resblocks") and name.endswith("weight_g"):
            return 0.5, 0.05
        if name.endswith("weight_g"):
            return 1.0, 0.1
        if name.endswith(("act.alpha", "act.beta")):
            return 0.0, 0.2  # logarithms
        if name.endswith("alpha") or ("norm" in name and name.endswith("weight")):
            return 1.0, 0.1
        if name.endswith("bias"):
            return 0.0, 0.01
        return 0.0, 1.0 / math.sqrt(_fan_in(shape))

    return _fill(seed, "audio_vae", shapes, scale) | computed
