"""Condition latents of sound against diffusers' audio VAE on the same weights."""

import numpy as np
import pytest
import torch

from minimax_h3.core.errors import H3Error
from minimax_h3.packing.patchify import audio_to_rows
from minimax_h3.vae.audio_encoder import AudioEncoder


def encoder(module) -> AudioEncoder:
    return AudioEncoder(module, module.config.latents_mean, module.config.latents_std)


def random_wave(samples: int, seed: int = 5) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (2, samples)).astype(np.float32)


def reference_rows(module, wave: np.ndarray) -> torch.Tensor:
    """The steps of the reference's reference encoder: mean, transpose, normalise, rows."""
    with torch.no_grad():
        posterior = module.encode(torch.from_numpy(wave)[:, None], return_dict=False)[0]
    latents = posterior.mode().transpose(1, 2)
    mean, std = (
        torch.tensor(values).view(1, 1, -1)
        for values in (module.config.latents_mean, module.config.latents_std)
    )
    return ((latents - mean) / std).reshape(-1, latents.shape[-1])


@pytest.mark.parametrize("samples", [1, 799, 800, 801, 16_000, 24_123])
def test_equals_diffusers_bit_for_bit(audio_vae800, samples):
    wave = random_wave(samples)
    latents = encoder(audio_vae800).encode(wave)
    assert latents.shape == (2, 32, -(-samples // 800))
    assert torch.equal(audio_to_rows(latents), reference_rows(audio_vae800, wave))


def test_the_tail_is_padded_with_silence(audio_vae4):
    wave = random_wave(10)
    padded = np.pad(wave, ((0, 0), (0, 2)))
    assert torch.equal(encoder(audio_vae4).encode(wave), encoder(audio_vae4).encode(padded))


def test_channels_are_encoded_alone_and_rows_are_channel_major(audio_vae800):
    wave = random_wave(4_000)
    latents = encoder(audio_vae800).encode(wave)
    swapped = encoder(audio_vae800).encode(wave[::-1].copy())
    assert torch.allclose(latents.flip(0), swapped, atol=1e-6)
    assert not torch.allclose(latents[0], latents[1], atol=1e-2)
    rows = audio_to_rows(latents)
    assert torch.equal(rows[:5], latents[0].T)
    assert torch.equal(rows[5:], latents[1].T)


def test_silence_is_a_condition_like_any_other(audio_vae800):
    latents = encoder(audio_vae800).encode(np.zeros((2, 1_600), np.float32))
    assert torch.isfinite(latents).all()
    assert torch.equal(latents[0], latents[1])


@pytest.mark.parametrize("shape", [(1, 800), (800,), (2, 0), (1, 2, 800)])
def test_wrong_waves_are_refused(audio_vae4, shape):
    with pytest.raises(ValueError, match=r"wave: shape .* legal: \[2, samples\]"):
        encoder(audio_vae4).encode(np.zeros(shape, np.float32))


def test_what_is_not_finite_is_an_error(audio_vae4):
    wave = random_wave(16)
    wave[1, 3] = np.nan
    with pytest.raises(H3Error, match="not finite"):
        encoder(audio_vae4).encode(wave)


def test_wrong_weights_and_statistics_are_refused(audio_vae4):
    with pytest.raises(ValueError, match="latents_mean: 3 values"):
        AudioEncoder(audio_vae4, [0.0] * 3, [1.0] * 32)
    audio_vae4.mean_proj.bfloat16()
    try:
        with pytest.raises(ValueError, match="legal: fp32 only"):
            encoder(audio_vae4)
    finally:
        audio_vae4.mean_proj.float()
