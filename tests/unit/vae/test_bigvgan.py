"""The fast audio decoder against the library's own forward, on the same weights."""

import pytest
import torch
from diffusers import AutoencoderKLMiniMaxH3Audio
from diffusers.models.autoencoders.autoencoder_kl_minimax_h3_audio import (
    MiniMaxH3AudioActivation1d,
    MiniMaxH3AudioSnakeBeta,
)

from minimax_h3.vae.bigvgan import AliasFreeSnake, BigVGANDecoder

TOLERANCE = 5e-6  # fp32, twelve-term sums in another order


@pytest.mark.parametrize(("channels", "length"), [(1, 40), (3, 1), (4, 7), (16, 331)])
def test_activation_equals_the_library(channels: int, length: int) -> None:
    torch.manual_seed(channels)
    module = MiniMaxH3AudioActivation1d(MiniMaxH3AudioSnakeBeta(channels))
    module.act.alpha.data.normal_(0, 0.5)
    module.act.beta.data.normal_(0, 0.5)
    module.requires_grad_(False)
    hidden = torch.randn(2, channels, length)
    before = hidden.clone()
    ours = AliasFreeSnake(module)(hidden)
    torch.testing.assert_close(ours, module(hidden), rtol=0, atol=TOLERANCE)
    assert torch.equal(hidden, before)


def test_decoder_equals_the_library() -> None:
    torch.manual_seed(0)
    vae = AutoencoderKLMiniMaxH3Audio(
        encoder_dim=4,
        encoder_rates=(2, 4),
        latent_dim=32,
        latent_channels=8,
        num_attention_heads=2,
        decoder_dim=16,
        decoder_rates=(4, 2),
        decoder_kernel_sizes=(8, 4),
        resblock_kernel_sizes=(3, 7),
        resblock_dilation_sizes=((1, 3), (1, 3)),
    ).eval()
    vae.requires_grad_(False)
    latents = torch.randn(2, 8, 23)
    expected = vae.decode(latents, return_dict=False)[0]
    ours = BigVGANDecoder(vae)(latents)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(ours, expected, rtol=0, atol=TOLERANCE)


def test_other_filters_are_refused() -> None:
    module = MiniMaxH3AudioActivation1d(MiniMaxH3AudioSnakeBeta(2), ratio=4, kernel_size=16)
    with pytest.raises(ValueError, match="legal: 12 taps, ratio 2"):
        AliasFreeSnake(module)
