import json

import numpy as np
import pytest
import torch

from minimax_h3.core.errors import H3Error
from minimax_h3.core.lengths import audio_latents_from_frames
from minimax_h3.vae.audio_decoder import AudioDecoder, sanity

TOLERANCE = 5e-5  # filter sums in another order, and these random decoders saturate


def decoder(module) -> AudioDecoder:
    return AudioDecoder(module, module.config.latents_mean, module.config.latents_std)


def noise(audio_latents: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((2, 32, audio_latents)).astype(np.float32)


def reference_wave(module, latents: np.ndarray) -> np.ndarray:
    mean = torch.tensor(module.config.latents_mean).view(1, -1, 1)
    std = torch.tensor(module.config.latents_std).view(1, -1, 1)
    with torch.inference_mode():
        wave = module.decode(torch.from_numpy(latents) * std + mean, return_dict=False)[0]
    return wave.permute(1, 0, 2)[0].numpy()


@pytest.mark.parametrize("audio_latents", [1, 5, 207])
def test_decode_equals_diffusers(audio_vae4, audio_latents):
    latents = noise(audio_latents)
    wave = decoder(audio_vae4).decode(latents)
    expected = reference_wave(audio_vae4, latents)
    assert expected.std() > 1e-3, "the oracle must make a sound"
    assert wave.shape == (2, 4 * audio_latents)
    assert np.abs(wave - expected).max() <= TOLERANCE


@pytest.mark.parametrize(
    ("frames", "audio_latents", "samples"),
    [(107, 178, 142_400), (124, 207, 165_600), (362, 603, 482_400)],
)
def test_released_hop_gives_800_samples_a_latent(audio_vae800, frames, audio_latents, samples):
    assert audio_latents_from_frames(frames) == audio_latents
    wave = decoder(audio_vae800).decode(torch.from_numpy(noise(audio_latents)))
    assert (wave.shape, wave.dtype) == ((2, samples), np.float32)


def test_released_hop_is_as_near_fp64_as_diffusers(audio_vae800, audio_vae800_fp64):
    # Seven random stages amplify the last bit to 1e-3 in any order of summing, so both are judged
    # by the same decode in fp64.
    latents = noise(40)
    exact_wave = reference_wave(audio_vae800_fp64, latents.astype(np.float64))
    reference_error = np.abs(reference_wave(audio_vae800, latents) - exact_wave).max()
    error = np.abs(decoder(audio_vae800).decode(latents) - exact_wave).max()
    assert 0 < error <= 2 * reference_error


def test_channels_are_independent_items(audio_vae4):
    latents = noise(20)
    stereo = decoder(audio_vae4).decode(latents)
    swapped = decoder(audio_vae4).decode(latents[::-1].copy())
    assert np.abs(stereo - swapped[::-1]).max() <= TOLERANCE
    assert np.abs(stereo[0] - stereo[1]).max() > 1e-3


def test_the_wave_stays_within_full_scale(audio_vae4):
    wave = decoder(audio_vae4).decode(1e4 * noise(50))
    assert np.abs(wave).max() == 1.0


def test_half_precision_weights_are_refused():
    halved = torch.nn.Module()
    halved.dec_in_proj = torch.nn.Conv1d(32, 32, 1, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"dec_in_proj\.weight is not fp32"):
        AudioDecoder(halved, [0.0] * 32, [1.0] * 32)


@pytest.mark.parametrize("shape", [(32, 10), (1, 32, 10), (2, 31, 10)])
def test_wrong_shapes_are_refused(audio_vae4, shape):
    with pytest.raises(ValueError, match=r"latents: shape .* legal: \[2, 32, A\]"):
        decoder(audio_vae4).decode(np.zeros(shape, np.float32))


def test_wrong_statistics_are_refused(audio_vae4):
    with pytest.raises(ValueError, match="latents_mean: 1 values"):
        AudioDecoder(audio_vae4, [0.0], [1.0] * 32)


def test_a_wave_that_is_not_finite_is_an_error(audio_vae4):
    latents = noise(10)
    latents[1, 3, 4] = np.nan
    with pytest.raises(H3Error, match="not finite"):
        decoder(audio_vae4).decode(latents)


def test_tf32_is_off_during_a_decode_and_back_afterwards_also_on_failure(audio_vae4, monkeypatch):
    seen = []

    def failing_decode(*_, **__):
        seen.append(torch.backends.cudnn.allow_tf32)
        raise H3Error("stop")

    before = torch.backends.cudnn.allow_tf32
    stereo = decoder(audio_vae4)
    monkeypatch.setattr(stereo, "_decode", failing_decode)
    with pytest.raises(H3Error, match="stop"):
        stereo.decode(noise(1))
    assert seen == [False]
    assert torch.backends.cudnn.allow_tf32 is before is True


def test_sanity_numbers():
    wave = np.zeros((2, 100), np.float32)
    wave[0, :50] = 0.5
    wave[1, :10] = -1.0
    numbers = sanity(wave)
    assert numbers["rms"] == pytest.approx(np.sqrt((50 * 0.25 + 10) / 200))
    assert numbers["peak"] == 1.0
    assert numbers["clipped_share"] == pytest.approx(0.05)
    assert json.loads(json.dumps(numbers)) == numbers
    assert set(sanity(np.zeros((2, 0), np.float32)).values()) == {0.0}
