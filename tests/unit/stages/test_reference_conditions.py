"""fl2va and ref2va against the diffusers pipeline: same files, same weights, same noise.

Ours goes through the real `model.py` files and the ensemble's wiring, in process, with both DiTs
loaded. The reference runs diffusers' own blocks; only the processor of its text encoder is a
stand-in, because the stock one needs torchvision. References are prepared small on both sides: at
the released short edges of 2048 and 768 pixels one request would take a CPU many minutes.
"""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers.modular_pipelines.minimax_h3.references import (
    MiniMaxH3AudioReference,
    MiniMaxH3ImageReference,
    MiniMaxH3Reference,
    MiniMaxH3VideoReference,
)
from fakes.ensemble import InProcessServer, server_of, stage_by_stage
from fakes.small_media import clip, picture, sound
from oracles.diffusers_pipeline import ReferenceClip, ReferencePipeline
from PIL import Image

from minimax_h3.core.plan import Plan
from minimax_h3.denoise.session import pack
from minimax_h3.packing.patchify import video_to_rows
from minimax_h3.weights.manifest import stated_canvas

WIDTH, HEIGHT, FRAMES, SEED = 96, 64, 124, 11
PROMPT = "a red ball bounces on a blue floor"
CONDITION_TOLERANCE = 1e-5
LATENT_TOLERANCE = 1e-4
EMBED_TOLERANCE = 1e-4  # of states that reach several units

ANCHOR, FOLLOWER = picture(200, 120, 1), picture(90, 150, 2)
SQUARE, WIDE, TALL = picture(300, 300, 3), picture(400, 250, 4), picture(256, 320, 5)
SPOKEN = clip(112, 64, 50, with_sound=True, seed=6)
VOICE = sound(2.2, 7)

FILES = {
    "video with sound": ("spoken",),
    "image, video, sound": ("image", "spoken", "voice"),
    "three images": ("image", "wide", "tall"),
}
PARTS_OF_THEM = {"image only": ("image",), "image and sound": ("image", "voice")}
ENCODED = {
    "image": SQUARE,
    "wide": WIDE,
    "tall": TALL,
    "spoken": SPOKEN,
    "voice": VOICE,
}


@dataclass(frozen=True)
class Pair:
    """One request on both sides."""

    ours: dict[str, np.ndarray]
    reference: ReferenceClip

    @property
    def plan(self) -> Plan:
        return Plan.from_json(self.ours["PLAN"][0])


@pytest.fixture(scope="module")
def server(small_canvas_checkpoint: Path) -> Iterator[InProcessServer]:
    with server_of(small_canvas_checkpoint, device="cpu", task_type="combined") as running:
        yield running


@pytest.fixture(scope="module")
def pipeline(tiny_diffusers_checkpoint: Path, small_canvas_checkpoint: Path) -> ReferencePipeline:
    canvas = stated_canvas(small_canvas_checkpoint)
    return ReferencePipeline(
        tiny_diffusers_checkpoint,
        canvas_short_edge=canvas.short_edge,
        canvas_max_pixels=canvas.max_area,
        reference_image_short_edge=canvas.reference_short_edge,
    )


def request(points: int, **tensors: np.ndarray) -> dict[str, np.ndarray]:
    return {
        "PROMPT": np.array([PROMPT.encode()], dtype=object),
        "WIDTH": np.array([WIDTH], np.int64),
        "HEIGHT": np.array([HEIGHT], np.int64),
        "NUM_FRAMES": np.array([FRAMES], np.int64),
        "NUM_INFERENCE_STEPS": np.array([points], np.int64),
        "SEED": np.array([SEED], np.int64),
        "RETURN_FRAMES": np.array([True]),
        "OPTIONS": np.array([b'{"noise_recipe": "single_stream"}'], dtype=object),
        **tensors,
    }


def run_both(
    server: InProcessServer,
    pipeline: ReferencePipeline,
    points: int,
    tensors: dict[str, np.ndarray],
    media: dict[str, object],
) -> Pair:
    ours = stage_by_stage(server, request(points, **tensors))
    size = {"width": WIDTH, "height": HEIGHT, "num_frames": FRAMES}
    return Pair(ours, pipeline.generate(PROMPT, points, SEED, **size, **media))


def check(pair: Pair) -> None:
    """Layout bit for bit; embeddings, conditions, latents and output within their tolerances."""
    ours, reference, plan = pair.ours, pair.reference, pair.plan
    tags = torch.from_numpy(ours["TEXT_TAGS"][0])
    assert torch.equal(tags, reference.text_tags)
    layout = pack(plan, tags)
    assert layout.num_rows == plan.packed_rows
    for name, tensor in {
        "position_ids": layout.positions,
        "token_tags": layout.token_tags,
        "video_indices": layout.video_indices,
        "audio_indices": layout.audio_indices,
        "text_indices": layout.text_indices,
    }.items():
        assert torch.equal(tensor, reference.layout[name]), name
    np.testing.assert_allclose(
        ours["PROMPT_EMBEDS"], reference.prompt_embeds.numpy(), rtol=0, atol=EMBED_TOLERANCE
    )
    rows = [video_to_rows(latents[0]) for latents in reference.condition_latents]
    sounds = reference.audio_condition_rows
    for name, parts in {"CONDITION_ROWS": rows, "AUDIO_CONDITION_ROWS": sounds}.items():
        expected = torch.cat(parts).numpy() if parts else np.zeros((0, ours[name].shape[2]))
        np.testing.assert_allclose(ours[name][0], expected, rtol=0, atol=CONDITION_TOLERANCE)
    for name, latents in {
        "VIDEO_LATENTS": reference.video_latents,
        "AUDIO_LATENTS": reference.audio_latents,
    }.items():
        np.testing.assert_allclose(ours[name][0], latents, rtol=0, atol=LATENT_TOLERANCE)
    differences = np.abs(ours["FRAMES"][0].astype(int) - reference.frames.astype(int))
    assert differences.max() <= 1
    np.testing.assert_allclose(ours["AUDIO"][0], reference.wave, rtol=0, atol=LATENT_TOLERANCE)


@pytest.mark.parametrize(
    ("signature", "points"), [("first", 8), ("last", 8), ("first and last", 50)]
)
def test_fl2va_equals_the_reference(
    server: InProcessServer, pipeline: ReferencePipeline, signature: str, points: int
) -> None:
    anchors = [name for name in ("first", "last") if name in signature]
    files = {"first": ANCHOR, "last": FOLLOWER}
    tensors = {
        "KEYFRAMES": np.array([files[name] for name in anchors], dtype=object),
        "FRAME_INDICES": np.array([{"first": 0, "last": -1}[name] for name in anchors], np.int64),
    }
    names = {"first": "image", "last": "last_image"}
    media = {names[name]: Image.open(io.BytesIO(files[name])) for name in anchors}
    pair = run_both(server, pipeline, points, tensors, media)
    assert pair.plan.task == "fl2va"
    assert pair.ours["CONDITION_ROWS"].shape == (1, len(anchors) * 6, 96)
    check(pair)
    assert json.loads(pair.ours["DENOISER_INFO"][0])["dit"] == "dit_fl2va"


def _files() -> list[object]:
    every_run = [pytest.param(files, id=name) for name, files in FILES.items()]
    marks = pytest.mark.whole_soak
    return every_run + [
        pytest.param(files, id=name, marks=marks) for name, files in PARTS_OF_THEM.items()
    ]


@pytest.mark.parametrize("files", _files())
def test_ref2va_equals_the_reference(
    server: InProcessServer, pipeline: ReferencePipeline, tmp_path: Path, files: tuple[str, ...]
) -> None:
    points = 50 if len(files) == 3 and "voice" in files else 6
    encoded = [ENCODED[name] for name in files]
    tensors = {"REFERENCES": np.array(encoded, dtype=object)}
    references = [decoded(name, tmp_path) for name in files]
    pair = run_both(server, pipeline, points, tensors, {"references": references})
    assert pair.plan.task == "ref2va"
    check(pair)
    assert json.loads(pair.ours["DENOISER_INFO"][0])["dit"] == "dit_ref2va"


def decoded(name: str, folder: Path) -> MiniMaxH3Reference:
    """The reference's own decoding of a file."""
    path = folder / name
    path.write_bytes(ENCODED[name])
    kinds = {"voice": MiniMaxH3AudioReference, "spoken": MiniMaxH3VideoReference}
    return kinds.get(name, MiniMaxH3ImageReference).from_file(path)
