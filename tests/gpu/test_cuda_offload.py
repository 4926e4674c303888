"""Weights by turns on a real GPU: memory comes back, bits and results stay."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from minimax_h3.stages.gpu_turn import GpuTurn
from minimax_h3.stages.offload import OffloadedWeights
from minimax_h3.vae.loading import load_video_vae
from minimax_h3.vae.video_decoder import VideoDecoder, Wanted
from minimax_h3.weights.manifest import identify

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
CUDA = torch.device("cuda:0")
LOG = logging.getLogger("test")
WIDTH = 16_384  # 1 GiB in FP32


def offloaded(folder: Path) -> OffloadedWeights:
    return OffloadedWeights(GpuTurn(folder, LOG), CUDA, LOG)


def layer(weights: OffloadedWeights, seed: int) -> nn.Linear:
    with weights.loading():
        made = nn.Linear(WIDTH, WIDTH, bias=False, device=CUDA).requires_grad_(False)
        made.weight.normal_(generator=torch.Generator(CUDA).manual_seed(seed))
        weights.adopt(made)
    return made


def test_the_memory_of_one_serves_two(tmp_path: Path) -> None:
    sides = [offloaded(tmp_path), offloaded(tmp_path)]
    layers = [layer(side, seed) for seed, side in enumerate(sides)]
    expected = []
    for side, made in zip(sides, layers, strict=True):
        with side.on_device():
            expected.append(made.weight.cpu())
    before = torch.cuda.memory_allocated()
    brought = []
    for _ in range(3):
        for side, made, value in zip(sides, layers, expected, strict=True):
            with side.on_device() as cost:
                brought.append(cost.brought_s)
                assert made.weight.is_cuda
                assert torch.equal(made.weight.cpu(), value)
                assert sum(each.weight.is_cuda for each in layers) == 1
                assert torch.cuda.memory_allocated() <= before + WIDTH * 4
    assert 0 < min(brought) < 4 * WIDTH**2 / 5e9, brought  # pinned memory: far above 5 GB/s


def test_work_under_way_ends_before_its_weights_go(tmp_path: Path) -> None:
    first, second = offloaded(tmp_path), offloaded(tmp_path)
    one, _ = layer(first, 0), layer(second, 1)
    rows = torch.randn(64, WIDTH, device=CUDA)
    with first.on_device():
        expected = one(rows)
        torch.cuda.synchronize()
    with second.on_device():
        pass
    with first.on_device():
        torch.cuda._sleep(200_000_000)
        made = one(rows)
    with second.on_device():
        assert torch.equal(made, expected)


@pytest.mark.parametrize("blocks", ["reference", "compiled"])
def test_a_decoder_that_was_away_makes_the_same_pictures(
    tiny_checkpoint: Path, tmp_path: Path, blocks: str
) -> None:
    latents = np.random.default_rng(4).standard_normal((24, 17, 24, 32), dtype=np.float32)

    def pictures(decoder: VideoDecoder) -> np.ndarray:
        clips = [clip.rgb for clip in decoder.decode(latents, Wanted())]
        return np.concatenate([clip for clip in clips if clip is not None])

    weights, other = offloaded(tmp_path), offloaded(tmp_path)
    with weights.loading():
        manifest = identify(tiny_checkpoint, "fl2va")
        decoder = load_video_vae(manifest, CUDA, torch.float32, 14, blocks)
        weights.adopt(*decoder.modules)
        expected = pictures(decoder)
    with other.on_device():
        pass
    with weights.on_device() as cost:
        assert np.array_equal(pictures(decoder), expected)
    assert cost.moves == 1
