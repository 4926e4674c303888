"""Blocks with fewer passes against those of diffusers, on the same weights."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from minimax_h3.vae import loading
from minimax_h3.vae.loading import load_video_vae
from minimax_h3.vae.video_decoder import VideoDecoder
from minimax_h3.vae.vit_blocks import PLAIN, VitBlock, replace_blocks_
from minimax_h3.weights.manifest import identify


def decoded(module, latents: np.ndarray) -> np.ndarray:
    config = module.config
    decoder = VideoDecoder(module, config.latents_mean, config.latents_std, "cpu")
    return np.concatenate(list(decoder.decode_clips(latents)))


def test_a_block_gives_what_its_original_gives(vae16) -> None:
    original = vae16.decoder.transformer_blocks[1]
    ours = VitBlock(copy.deepcopy(original))
    generator = torch.Generator().manual_seed(2)
    stream = torch.randn(3, 21, original.attn.to_q.in_features, generator=generator)
    angles = torch.rand(1, 21, 1, 6, generator=generator).repeat(1, 1, 1, 1)
    angles = torch.cat((angles[..., :3], angles[..., :3]), -1)
    rotary = (angles.cos(), angles.sin())
    with torch.inference_mode():
        torch.testing.assert_close(
            ours(stream, rotary), original(stream, rotary), rtol=1e-5, atol=1e-5
        )


def test_q_k_and_v_are_held_once(vae16) -> None:
    module = copy.deepcopy(vae16)
    before = sum(value.numel() for value in module.decoder.parameters())
    replace_blocks_(module.decoder, PLAIN)
    assert sum(value.numel() for value in module.decoder.parameters()) == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pictures_stay_within_one_level(vae16, random_latents, dtype: torch.dtype) -> None:
    latents = random_latents(24, 12, 4, 6)
    plain, fused = copy.deepcopy(vae16), copy.deepcopy(vae16)
    replace_blocks_(fused.decoder, PLAIN)
    expected = decoded(plain, latents)
    difference = np.abs(decoded(fused, latents).astype(np.int16) - expected)
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.01
    if dtype == torch.float32:
        return
    for module in (plain, fused):
        for name, value in module.named_parameters():
            if not {"norm1", "norm2", "norm_out", "scale1", "scale2"} & {*name.split(".")}:
                value.data = value.data.to(dtype)
    exact, ours = decoded(plain, latents).astype(int), decoded(fused, latents).astype(int)
    # Fewer roundings: no further from FP32 than diffusers in the same dtype.
    assert np.abs(ours - expected).mean() <= 1.1 * np.abs(exact - expected).mean()


def test_the_loader_exchanges_the_blocks_when_asked(
    tiny_checkpoint: Path, random_latents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "compiled_ops", lambda: PLAIN)  # a CPU would compile for minutes
    manifest, cpu = identify(tiny_checkpoint, "fl2va"), torch.device("cpu")
    latents = random_latents(24, 7, 4, 4)
    plain, fused = (
        np.concatenate(
            list(load_video_vae(manifest, cpu, torch.float32, blocks=blocks).decode_clips(latents))
        )
        for blocks in ("reference", "compiled")
    )
    assert np.abs(plain.astype(np.int16) - fused).max() <= 1
