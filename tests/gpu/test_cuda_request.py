"""A whole request with every model on the GPU, against the same request on the CPU."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes.ensemble import run_stage_by_stage

from minimax_h3.denoise.session import DenoiseSession
from minimax_h3.media.check import Expectation, check_mp4

WIDTH, HEIGHT, FRAMES = 320, 288, 124  # several tiles each way

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


REQUEST = {
    "PROMPT": np.array([b"a red ball bounces"], dtype=object),
    "WIDTH": np.array([WIDTH], np.int64),
    "HEIGHT": np.array([HEIGHT], np.int64),
    "NUM_FRAMES": np.array([FRAMES], np.int64),
    "RETURN_FRAMES": np.array([True]),
}


def serve(checkpoint: Path, **config: str) -> dict[str, np.ndarray]:
    return run_stage_by_stage(checkpoint, REQUEST, **config)


@pytest.fixture(scope="module")
def on_cpu(tiny_checkpoint: Path) -> dict[str, np.ndarray]:
    return serve(tiny_checkpoint, device="cpu")


def relative(ours: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(ours - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize(("dtype", "tolerance"), [("fp32", 1e-3), ("bf16", 0.1)])
def test_cuda_equals_cpu(
    tiny_checkpoint: Path, on_cpu: dict[str, np.ndarray], dtype: str, tolerance: float
) -> None:
    on_gpu = serve(tiny_checkpoint, device="cuda", dtype=dtype)
    metadata = json.loads(on_gpu["METADATA"][0])
    assert metadata["backend"]["device"] == "cuda:0"
    errors = {
        name: relative(on_gpu[name], on_cpu[name])
        for name in ("PROMPT_EMBEDS", "VIDEO_LATENTS", "AUDIO_LATENTS", "AUDIO")
    }
    frames = on_gpu["FRAMES"].astype(int) - on_cpu["FRAMES"].astype(int)
    print(dtype, errors, "frame difference", np.abs(frames).mean(), metadata["stages"])  # noqa: T201
    for name in ("VIDEO_LATENTS", "AUDIO_LATENTS"):  # each stream on its own
        assert errors[name] < tolerance, errors
    report = check_mp4(
        bytes(on_gpu["MP4"][0]), Expectation(width=WIDTH, height=HEIGHT, num_frames=FRAMES)
    )
    assert report.passed, str(report)


def test_auto_takes_the_gpu_and_bf16(tiny_checkpoint: Path) -> None:
    metadata = json.loads(serve(tiny_checkpoint)["METADATA"][0])
    assert metadata["backend"]["device"] == "cuda:0"
    assert metadata["backend"]["dtype"] == "bfloat16"
    assert metadata["stages"]["denoiser"]["peak_bytes"] > 0


def test_the_step_loop_never_waits_for_the_device(tiny_checkpoint: Path) -> None:
    # Any synchronising call inside a step raises in this mode.
    plain = DenoiseSession.step

    def watched(self: DenoiseSession, index: int) -> None:
        torch.cuda.set_sync_debug_mode("error")
        try:
            plain(self, index)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DenoiseSession, "step", watched)
        serve(tiny_checkpoint, device="cuda")
