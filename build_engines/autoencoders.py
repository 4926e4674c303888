"""The two diffusers autoencoders on meta: where their tensor names and shapes come from."""

import warnings
from collections.abc import Mapping
from typing import Any

from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio

from minimax_h3.weights.loader import build_on_meta


def video_autoencoder(arguments: Mapping[str, object]) -> Any:
    """`AutoencoderKLMiniMaxH3` without memory for its parameters."""
    return build_on_meta(lambda: AutoencoderKLMiniMaxH3(**arguments))


def audio_autoencoder(arguments: Mapping[str, object]) -> Any:
    """`AutoencoderKLMiniMaxH3Audio` without memory for its parameters; its filters are real."""
    with warnings.catch_warnings():
        # The checkpoint stores weight-norm pairs under the names of torch's older function.
        warnings.filterwarnings("ignore", message=".*weight_norm.*", category=FutureWarning)
        return build_on_meta(lambda: AutoencoderKLMiniMaxH3Audio(**arguments))
