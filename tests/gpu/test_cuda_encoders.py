"""Condition latents made on the GPU against the CPU's, which are the reference's bit for bit."""

import numpy as np
import pytest
import torch

from minimax_h3.vae.loading import load_audio_encoder, load_video_encoder
from minimax_h3.weights.manifest import identify

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
MOMENTS = 1e-4  # FP32 sums in another order; TF32 errs by 1e-3
ROUNDED = 0.02  # share of latents that such an error may carry over a border of fp16


@pytest.mark.parametrize(("frames", "height", "width"), [(1, 320, 288), (22, 64, 96)])
def test_pictures_and_videos(tiny_checkpoint, frames: int, height: int, width: int) -> None:
    given = np.random.default_rng(3).integers(0, 256, (frames, height, width, 3), dtype=np.uint8)
    manifest = identify(tiny_checkpoint, "fl2va")
    encoders = [load_video_encoder(manifest, device) for device in (CPU, CUDA)]
    exact, fast = (torch.cat(list(each.encode_clips(given)), dim=1) for each in encoders)
    error = (exact - fast).abs().max() / exact.abs().max()
    print("moments, relative error", error.item())  # noqa: T201
    assert error < MOMENTS
    latents = [each.encode(given) for each in encoders]
    different = (latents[0] - latents[1]).abs() > 1e-5
    print("latents rounded otherwise", different.float().mean().item())  # noqa: T201
    assert different.float().mean() < ROUNDED


def test_sound(tiny_checkpoint) -> None:
    wave = np.random.default_rng(4).uniform(-1, 1, (2, 64_000)).astype(np.float32)
    manifest = identify(tiny_checkpoint, "fl2va")
    exact, fast = (load_audio_encoder(manifest, device).encode(wave) for device in (CPU, CUDA))
    error = (exact - fast).abs().max() / exact.abs().max()
    print("sound, relative error", error.item())  # noqa: T201
    assert error < MOMENTS
