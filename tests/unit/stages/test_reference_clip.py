"""Whole clips against the diffusers pipeline on the same weights and the same noise.

Both run in FP32 on the CPU. Ours goes through the real `model.py` files and the ensemble's wiring,
in process; the reference runs diffusers' own blocks on the converted checkpoint.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from fakes.ensemble import run_stage_by_stage
from oracles.diffusers_pipeline import ReferenceClip, ReferencePipeline

WIDTH, HEIGHT, FRAMES, SEED = 96, 64, 124, 11
PROMPT = "a red ball bounces on a blue floor"
LATENT_TOLERANCE = 1e-4  # fp32, 49 forwards
WAVE_TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def reference(tiny_diffusers_checkpoint: Path) -> ReferenceClip:
    pipeline = ReferencePipeline(tiny_diffusers_checkpoint)
    size = {"width": WIDTH, "height": HEIGHT, "num_frames": FRAMES}
    return pipeline.generate(PROMPT, num_points=50, seed=SEED, **size)


REQUEST = {
    "PROMPT": np.array([PROMPT.encode()], dtype=object),
    "WIDTH": np.array([WIDTH], np.int64),
    "HEIGHT": np.array([HEIGHT], np.int64),
    "NUM_FRAMES": np.array([FRAMES], np.int64),
    "SEED": np.array([SEED], np.int64),
    "RETURN_FRAMES": np.array([True]),
    "OPTIONS": np.array([b'{"noise_recipe": "single_stream"}'], dtype=object),
}


def ours(checkpoint: Path, **config: str) -> dict[str, np.ndarray]:
    return run_stage_by_stage(checkpoint, REQUEST, device="cpu", **config)


@pytest.fixture(scope="module")
def clip(tiny_checkpoint: Path) -> dict[str, np.ndarray]:
    return ours(tiny_checkpoint)


def test_clip_equals_the_reference(clip: dict[str, np.ndarray], reference: ReferenceClip) -> None:
    for name, expected in (
        ("VIDEO_LATENTS", reference.video_latents),
        ("AUDIO_LATENTS", reference.audio_latents),
    ):
        np.testing.assert_allclose(clip[name][0], expected, rtol=0, atol=LATENT_TOLERANCE)
    differences = np.abs(clip["FRAMES"][0].astype(int) - reference.frames.astype(int))
    assert differences.max() <= 1
    assert (differences > 0).any(axis=-1).mean() <= 1e-3
    np.testing.assert_allclose(clip["AUDIO"][0], reference.wave, rtol=0, atol=WAVE_TOLERANCE)


def test_the_clip_is_not_trivial(clip: dict[str, np.ndarray]) -> None:
    frames = clip["FRAMES"][0].astype(float)
    assert frames.std() > 1
    assert np.abs(np.diff(frames, axis=0)).mean() > 0
    assert clip["AUDIO"][0].std() > 1e-4


def test_both_layouts_give_the_same_bits(
    clip: dict[str, np.ndarray], tiny_diffusers_checkpoint: Path
) -> None:
    other = ours(tiny_diffusers_checkpoint)
    for name in ("PROMPT_EMBEDS", "VIDEO_LATENTS", "AUDIO_LATENTS", "FRAMES", "AUDIO"):
        np.testing.assert_array_equal(clip[name], other[name])
    metadata = json.loads(other["METADATA"][0])
    assert metadata["checkpoint"]["layout"] == "diffusers"


def test_bf16_on_cpu_stays_close_to_fp32(
    clip: dict[str, np.ndarray], tiny_checkpoint: Path
) -> None:
    half = ours(tiny_checkpoint, dtype="bf16")
    assert json.loads(half["METADATA"][0])["backend"]["dtype"] == "bfloat16"
    for name in ("VIDEO_LATENTS", "AUDIO_LATENTS"):  # each stream judged on its own
        error = np.linalg.norm(half[name] - clip[name]) / np.linalg.norm(clip[name])
        assert 0 < error < 0.1
