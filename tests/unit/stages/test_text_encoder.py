"""Pixels and prompt -> embeddings, through our stage and through diffusers' text encoder steps."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers.modular_pipelines.minimax_h3.encoders import (
    MiniMaxH3FL2VATextEncoderStep,
    MiniMaxH3Ref2VATextEncoderStep,
)
from diffusers.modular_pipelines.minimax_h3.references import (
    MiniMaxH3AudioReference,
    MiniMaxH3ImageReference,
    MiniMaxH3VideoReference,
)
from oracles.vision_processor import ReferenceProcessor
from PIL import Image
from transformers import PreTrainedTokenizerFast, Qwen3VLForConditionalGeneration

from minimax_h3.core.conditions import AUDIO, IMAGE, KEYFRAME, VIDEO, Condition
from minimax_h3.core.config import StageConfig
from minimax_h3.core.contracts import MODELS
from minimax_h3.core.plan import build_plan
from minimax_h3.core.request import GenerationRequest
from minimax_h3.stages.base import StageContext, StageRequest, text_tensor
from minimax_h3.stages.text_encoder import TextEncoderStage
from minimax_h3.text.presentation import blocks_of, present_request
from minimax_h3.text.tokenizer import load_tokenizer
from minimax_h3.text.vision_pixels import pack_pixels
from minimax_h3.text.vision_rules import load_vision_rules
from minimax_h3.weights.manifest import CheckpointManifest, identify

LOG = logging.getLogger("test")
PROMPT = "Picture 1 looks at Video 1, é漢"
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def manifest(tiny_checkpoint: Path) -> CheckpointManifest:
    return identify(tiny_checkpoint, "fl2va")


@pytest.fixture(scope="module")
def stage(tiny_checkpoint: Path) -> TextEncoderStage:
    def jobs(model: str, inputs: dict, outputs: list[str]) -> dict:
        return {"ANSWER": text_tensor("{}")}

    config = StageConfig(checkpoint_dir=str(tiny_checkpoint), device="cpu")
    return TextEncoderStage.load(StageContext(config, Path("models/text_encoder"), jobs, LOG))


@pytest.fixture(scope="module")
def components(manifest: CheckpointManifest) -> dict[str, object]:
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(manifest.tokenizer / "tokenizer.json"))
    pads = map(tokenizer.convert_tokens_to_ids, ("<|image_pad|>", "<|video_pad|>"))
    return {
        "text_encoder": Qwen3VLForConditionalGeneration.from_pretrained(
            manifest.root / "text_encoder", dtype=torch.float32
        ),
        "tokenizer": tokenizer,
        "processor": ReferenceProcessor(*pads),
    }


def frames(count: int, width: int, height: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def encode(
    stage: TextEncoderStage,
    manifest: CheckpointManifest,
    conditions: list[Condition],
    pixels: list[np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings [L, width] and tags [L], by the functions that `preprocess` uses."""
    blocks = blocks_of(conditions, load_vision_rules(manifest.processor))
    ids, tags = present_request(PROMPT, blocks, load_tokenizer(manifest.tokenizer))
    vision = pack_pixels(blocks, pixels)
    plan = build_plan(
        GenerationRequest.from_fields({"prompt": PROMPT, "width": 64, "height": 64}),
        job_id="j",
        alias="",
        text_rows=len(ids),
        flow_shift=12.0,
        audio_flow_shift=3.0,
        received_at=0.0,
    )
    answer = stage.run(
        StageRequest(
            {
                "PLAN": text_tensor(plan.to_json()),
                "TOKEN_IDS": ids,
                "PIXEL_VALUES": vision.pixel_values,
                "IMAGE_GRID_THW": vision.image_grid,
                "VIDEO_GRID_THW": vision.video_grid,
            }
        )
    )
    assert set(answer) == {output.name for output in MODELS["text_encoder"].outputs}
    assert json.loads(answer["TEXT_ENCODER_INFO"][0])["seconds"] > 0
    return answer["PROMPT_EMBEDS"][0], tags


def reference(step, components: dict, **inputs: object) -> tuple[np.ndarray, np.ndarray]:
    pipe = step.init_pipeline()
    pipe.update_components(**components)
    state = pipe(prompt=PROMPT, **inputs)
    return state.get("prompt_embeds")[0].numpy(), state.get("text_token_tags").numpy()


def assert_equal(
    ours: tuple[np.ndarray, np.ndarray], theirs: tuple[np.ndarray, np.ndarray]
) -> None:
    assert ours[1].tolist() == theirs[1].tolist()
    assert ours[0].shape == theirs[0].shape
    assert np.abs(ours[0] - theirs[0]).max() <= TOLERANCE
    assert ours[0].std() > 0.1


def picture(kind: str, width: int, height: int) -> Condition:
    return Condition(kind, 0, "", width=width, height=height, num_frames=1, presented_frames=1)


@pytest.mark.parametrize("size", [(256, 256), (96, 64)])
@pytest.mark.parametrize("count", [1, 2])
def test_keyframes_equal_diffusers(
    stage, manifest, components, count: int, size: tuple[int, int]
) -> None:
    pixels = list(frames(count, *size, seed=1))
    ours = encode(stage, manifest, [picture(KEYFRAME, *size)] * count, pixels)
    theirs = reference(
        MiniMaxH3FL2VATextEncoderStep(),
        components,
        keyframes=[Image.fromarray(each) for each in pixels],
    )
    assert_equal(ours, theirs)


def test_references_of_every_kind_equal_diffusers(stage, manifest, components) -> None:
    first, second = frames(1, 288, 256, 2)[0], frames(1, 256, 256, 3)[0]
    silent, sounding = frames(25, 64, 96, 4), frames(40, 96, 64, 5)
    wave = torch.zeros(2, 32_000)
    conditions = [
        Condition(VIDEO, 0, "", 64, 96, 22, 25),
        picture(IMAGE, 288, 256),
        Condition(AUDIO, 0, "", audio_latents=40),
        Condition(VIDEO, 0, "", 96, 64, 39, 40, 66),
        picture(IMAGE, 256, 256),
    ]
    ours = encode(stage, manifest, conditions, [silent[::12], first, sounding[::12], second])
    theirs = reference(
        MiniMaxH3Ref2VATextEncoderStep(),
        components,
        normalized_references=[
            MiniMaxH3VideoReference(silent),
            MiniMaxH3ImageReference(Image.fromarray(first)),
            MiniMaxH3AudioReference(wave),
            MiniMaxH3VideoReference(sounding, audio=wave),
            MiniMaxH3ImageReference(Image.fromarray(second)),
        ],
    )
    assert_equal(ours, theirs)


def test_pixels_matter_and_text_alone_needs_none(stage, manifest) -> None:
    given = frames(1, 256, 256, 6)[0]
    one, _ = encode(stage, manifest, [picture(KEYFRAME, 256, 256)], [given])
    other, _ = encode(stage, manifest, [picture(KEYFRAME, 256, 256)], [255 - given])
    assert np.abs(one - other).max() > 0.1
    alone, tags = encode(stage, manifest, [], [])
    assert alone.shape == (len(PROMPT.encode()), 24)
    assert set(tags.tolist()) == {1}
