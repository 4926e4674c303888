import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio


def randomise(module: torch.nn.Module, seed: int = 0) -> None:
    """Give every parameter a value that shows in the output; layer scales start at zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in module.named_parameters():
            noise = torch.randn(value.shape, generator=generator)
            if name.endswith(("scale1", "scale2")):
                value.copy_(0.5 + 0.1 * noise)
            elif value.ndim > 1:
                value.copy_(noise / value[0].numel() ** 0.5)
            else:
                value.copy_((1.0 if "norm" in name and "weight" in name else 0.0) + 0.1 * noise)


def build_video_vae(*, levels: int = 2, channels: int = 4, seed: int = 0) -> AutoencoderKLMiniMaxH3:
    """A random tiny VAE: `levels` 2 gives 4x spatial, 4 gives the released 16x; temporal 4x."""
    generator = torch.Generator().manual_seed(seed + 1)
    module = AutoencoderKLMiniMaxH3(
        latent_channels=channels,
        block_out_channels=(8,) * levels,
        layers_per_block=1,
        spatial_downsample_factors=(2,) * levels,
        temporal_downsample_factors=(2, 2, *(1,) * (levels - 2)),
        norm_num_groups=8,
        decoder_num_layers=2,
        decoder_num_attention_heads=2,
        decoder_attention_head_dim=8,
        decoder_num_register_tokens=2,
        decoder_ffn_mult=2,
        latents_mean=torch.randn(channels, generator=generator).tolist(),
        latents_std=(torch.rand(channels, generator=generator) + 0.5).tolist(),
    )
    randomise(module, seed)
    return module.eval()


AUDIO_RATES = {
    (2, 2): ((2, 2), (4, 4)),
    (2, 4, 4, 5, 5): ((5, 5, 2, 2, 2, 2, 2), (9, 9, *(4,) * 5)),
}


def build_audio_vae(
    *, encoder_rates: tuple[int, ...] = (2, 2), seed: int = 0
) -> AutoencoderKLMiniMaxH3Audio:
    """A random tiny audio VAE; hop 4 by default, (2, 4, 4, 5, 5) gives the released 800."""
    decoder_rates, kernels = AUDIO_RATES[encoder_rates]
    generator = torch.Generator().manual_seed(seed + 1)
    with warnings.catch_warnings():
        # diffusers keeps the old weight norm, because released files store weight_g and weight_v.
        warnings.filterwarnings("ignore", ".torch.nn.utils.weight_norm", FutureWarning)
        module = AutoencoderKLMiniMaxH3Audio(
            encoder_dim=4,
            encoder_rates=encoder_rates,
            latent_dim=32,
            latent_channels=32,
            num_attention_heads=2,
            decoder_dim=2 ** len(decoder_rates),
            decoder_rates=decoder_rates,
            decoder_kernel_sizes=kernels,
            resblock_kernel_sizes=(3,),
            resblock_dilation_sizes=((1, 3),),
            latents_mean=torch.randn(32, generator=generator).tolist(),
            latents_std=(torch.rand(32, generator=generator) + 0.5).tolist(),
        )
    with torch.no_grad():
        for name, value in module.named_parameters():
            noise = torch.randn(value.shape, generator=generator)
            if name.endswith("weight_g"):
                value.copy_(1 + 0.2 * noise)
            elif not name.endswith(("weight_v", "alpha", "beta")):
                value.add_(0.1 * noise)
    return module.eval()


@pytest.fixture(scope="session")
def vae4() -> AutoencoderKLMiniMaxH3:
    return build_video_vae(levels=2)


@pytest.fixture(scope="session")
def vae16() -> AutoencoderKLMiniMaxH3:
    return build_video_vae(levels=4, channels=24)


@pytest.fixture(scope="session")
def audio_vae4() -> AutoencoderKLMiniMaxH3Audio:
    return build_audio_vae()


@pytest.fixture(scope="session")
def audio_vae800() -> AutoencoderKLMiniMaxH3Audio:
    return build_audio_vae(encoder_rates=(2, 4, 4, 5, 5))


@pytest.fixture(scope="session")
def audio_vae800_fp64() -> AutoencoderKLMiniMaxH3Audio:
    """The weights of `audio_vae800`, widened."""
    return build_audio_vae(encoder_rates=(2, 4, 4, 5, 5)).double()


@pytest.fixture
def random_latents() -> Callable[[int, int, int, int], np.ndarray]:
    def make(channels: int, frames: int, height: int, width: int, seed: int = 7) -> np.ndarray:
        rng = np.random.default_rng(seed)
        return rng.standard_normal((channels, frames, height, width)).astype(np.float32)

    return make
