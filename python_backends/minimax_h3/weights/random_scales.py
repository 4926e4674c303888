"""Mean and deviation of random weights, at which every part of a network matters.

The tiny checkpoint is written with them, and dummy weights are drawn with them on the device.
Names are ours, see `weights.key_maps`.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

Shape: TypeAlias = tuple[int, ...]
Scale: TypeAlias = Callable[[str, Shape], tuple[float, float]]


def spread(shape: Shape) -> float:
    """Deviation of a matrix that keeps the size of its input."""
    return 1.0 / math.sqrt(max(math.prod(shape[1:]), 1))


def transformer_scale(name: str, shape: Shape) -> tuple[float, float]:
    """Of the transformer."""
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return 2.0, 0.1  # sharp enough that rows choose, or every row would see one average
    if "norm" in name:
        return 1.0, 0.1
    if name.endswith("adaln.bias"):
        return 0.0, 0.3  # shift, scale and gate away from zero, or blocks would do nothing
    if name.endswith("bias"):
        return 0.0, 0.05
    return 0.0, spread(shape)


def text_encoder_scale(layers: int) -> Scale:
    """Of a Qwen3-VL with so many decoder layers, vision tower included."""
    residual = 1.0 / math.sqrt(2 * layers)

    def scale(name: str, shape: Shape) -> tuple[float, float]:
        if "norm" in name and name.endswith("weight"):
            return 1.0, 0.1
        if name.endswith("bias"):
            return 0.0, 0.05
        if "embed_tokens" in name:
            return 0.0, 1.0
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            return 0.0, 2.0 * residual * spread(shape)
        return 0.0, spread(shape)

    return scale


def video_vae_scale(name: str, shape: Shape) -> tuple[float, float]:
    """Of the video autoencoder."""
    if ".scale" in name:
        return 0.5, 0.1  # a LayerScale near zero would leave attention untested
    if "norm" in name and name.endswith("weight"):
        return 1.0, 0.1
    if name.endswith("bias"):
        return 0.0, 0.05
    if name == "decoder.register_tokens":
        return 0.0, 1.0
    if name == "decoder.proj_out.weight":
        return 0.0, 0.8 * spread(shape)
    return 0.0, spread(shape)


def audio_vae_scale(name: str, shape: Shape) -> tuple[float, float]:
    """Of the audio autoencoder."""
    if name.endswith("zero_k_bias"):
        return 0.0, 0.0
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
    return 0.0, spread(shape)
