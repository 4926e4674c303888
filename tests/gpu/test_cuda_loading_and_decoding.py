"""Weights through pinned slots, and pictures that leave the GPU while the next clip is decoded."""

from pathlib import Path

import numpy as np
import pytest
import torch

from minimax_h3.dit.loading import load_transformer
from minimax_h3.stages.pace import Pace
from minimax_h3.vae.loading import load_video_vae
from minimax_h3.vae.pixels import planar_yuv420
from minimax_h3.vae.video_decoder import Wanted
from minimax_h3.weights.manifest import identify
from minimax_h3.weights.payload import PayloadReader, read_tensor

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")


def latents() -> np.ndarray:
    return np.random.default_rng(4).standard_normal((24, 17, 24, 32), dtype=np.float32)


@pytest.mark.parametrize("slot_bytes", [4096, 1 << 20])
def test_slots_bring_the_bits_of_the_file(tiny_checkpoint: Path, slot_bytes: int) -> None:
    files = identify(tiny_checkpoint, "fl2va").weights["transformer"]
    with PayloadReader(CUDA, slot_bytes) as reader:
        for name, file in files.file_of().items():
            assert torch.equal(reader.read(file, name, CUDA).cpu(), read_tensor(file, name))


def test_adaln_weights_lie_in_pinned_memory(tiny_checkpoint: Path) -> None:
    manifest = identify(tiny_checkpoint, "fl2va")
    model = load_transformer(manifest, CUDA, torch.bfloat16, adaln_on_host=True)
    for name, value in model.named_parameters():
        assert value.is_pinned() is (".adaln." in name and name.startswith("blocks.")), name
        assert value.is_cuda is not value.is_pinned()


@pytest.mark.parametrize("blocks", ["reference", "compiled"])
def test_clips_under_way_are_those_of_the_cpu(tiny_checkpoint: Path, blocks: str) -> None:
    manifest = identify(tiny_checkpoint, "fl2va")
    on_cpu = load_video_vae(manifest, CPU, torch.float32).decode(latents(), Wanted())
    on_gpu = load_video_vae(manifest, CUDA, torch.float32, 14, blocks)
    both = Wanted(rgb=True, yuv=True)
    for expected, clip in zip(on_cpu, on_gpu.decode(latents(), both), strict=True):
        assert expected.rgb is not None
        assert clip.rgb is not None
        assert clip.yuv is not None
        assert np.abs(expected.rgb.astype(np.int16) - clip.rgb).max() <= 1
        planes = planar_yuv420(torch.from_numpy(clip.rgb).permute(3, 0, 1, 2)).numpy()
        assert np.abs(planes.astype(np.int16) - clip.yuv).max() <= 1


def test_the_host_waits_for_the_step_before_the_newest() -> None:
    pace = Pace.on(CUDA)
    for _ in range(3):
        torch.cuda._sleep(20_000_000)
        pace.launched()
    assert pace._newest is not None
    torch.cuda.synchronize()
