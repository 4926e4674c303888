"""What is trained on is what is served: presentation, packing, times, forward, vision features."""

import hashlib
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from build_engines.tiny_tokenizer import tokenizer_files, write_files
from build_engines.train_tiny import model_configs
from build_engines.train_tiny.dit_forward import velocities
from build_engines.train_tiny.dit_learner import TextAndTransformer, class_times, shifted
from build_engines.train_tiny.documents import (
    KEYFRAME_TASKS,
    REFERENCE_TASKS,
    DocumentBatch,
    Format,
    Kind,
    Presenter,
)
from build_engines.train_tiny.text_model import patches
from minimax_h3.attention.sdpa import SdpaAttention
from minimax_h3.core.conditions import Condition
from minimax_h3.core.constants import Modality
from minimax_h3.core.request import GenerationRequest
from minimax_h3.denoise.session import pack
from minimax_h3.media.facts import inspect
from minimax_h3.media.prepare import plan_keyframe
from minimax_h3.packing import row_times
from minimax_h3.packing.batch import pack_batch
from minimax_h3.schedules.sigma import SigmaSchedule
from minimax_h3.text.presentation import blocks_of, present_request
from minimax_h3.text.tokenizer import load_tokenizer
from minimax_h3.text.vision_inputs import vision_inputs
from minimax_h3.text.vision_pixels import pack_pixels
from minimax_h3.text.vision_rules import load_vision_rules

SMALL = Format(64, 32, 22)
PROMPTS = ("a red circle", "an orange star blinks on a blue ground")
TASKS = (*KEYFRAME_TASKS, *REFERENCE_TASKS)


@pytest.fixture(scope="module")
def networks() -> TextAndTransformer:
    module = TextAndTransformer(0)
    torch.manual_seed(3)
    with torch.no_grad():  # closed branches would hide what they compute
        for name, parameter in module.transformer.named_parameters():
            if name.endswith(("adaln.weight", "out.weight", "bias")):
                parameter.normal_(std=0.2)
    return module


def batch_of(kind: Kind, networks: TextAndTransformer) -> tuple[Presenter, DocumentBatch]:
    presenter = Presenter(kind, networks.text)
    return presenter, presenter.batch([0, 1], PROMPTS)


def test_a_keyframe_document_is_what_preprocess_makes_of_the_files(
    networks: TextAndTransformer, tmp_path: Path
) -> None:
    """From encoded bytes on, through the functions that the stages call."""
    form = Format(128, 128, 107)
    presenter, batch = batch_of(Kind("both", form), networks)
    encoded = io.BytesIO()
    Image.fromarray(np.zeros((128, 128, 3), np.uint8)).save(encoded, "PNG")
    element = encoded.getvalue()
    request = GenerationRequest.from_fields(
        {
            "prompt": PROMPTS[1],
            "keyframes": (element, element),
            "width": 128,
            "height": 128,
            "num_frames": 107,
        }
    )
    write_files(tmp_path / "tokenizer", tokenizer_files())
    write_files(tmp_path / "processor", model_configs.processor())
    conditions = [
        plan_keyframe(inspect(element, f"keyframes[{i}]"), i, 128, 128, frame)
        for i, frame in enumerate(request.frame_indices)
    ]
    assert conditions[0].digest == hashlib.sha256(element).hexdigest()
    rules = load_vision_rules(tmp_path / "processor")
    blocks = blocks_of(conditions, rules)
    ids, tags = present_request(PROMPTS[1], blocks, load_tokenizer(tmp_path / "tokenizer"))
    length = len(ids)
    assert np.array_equal(batch.token_ids[1, :length], ids)
    assert batch.text_held[1].sum() == length
    plan = presenter.kind.plan(length)
    assert (plan.task, plan.width, plan.num_frames) == ("fl2va", 128, 107)
    layout = pack(plan, torch.from_numpy(tags))
    held = visible(batch)[1]
    assert torch.equal(batch.positions[1][held], layout.positions.float())
    assert_same_times(batch.lookup[1][held], layout)


def visible(batch: DocumentBatch) -> torch.Tensor:
    media = batch.positions.shape[1] - batch.text_held.shape[1]
    return torch.cat((batch.text_held, torch.ones(2, media, dtype=torch.bool)), dim=1)


def assert_same_times(lookup: torch.Tensor, layout) -> None:
    schedule = SigmaSchedule.build(8, 12.0), SigmaSchedule.build(8, 3.0)
    for step in range(7):
        video, audio = (float(each.times[step]) for each in schedule)
        served = row_times.row_times(layout, row_times.class_times(video, audio))
        ours = class_times(torch.tensor([video]), torch.tensor([audio]))[0]
        assert torch.equal(ours[lookup // 3], served.times[served.index])
        assert torch.equal(lookup % 3, layout.token_tags.clamp(min=0))


@pytest.mark.parametrize("task", TASKS)
def test_rows_positions_tags_and_velocities_are_those_of_the_packed_batch(
    task: str, networks: TextAndTransformer
) -> None:
    torch.manual_seed(1)
    kind = Kind(task, SMALL)
    presenter, batch = batch_of(kind, networks)
    layouts = [presenter.layout(presenter.present(prompt)[1]) for prompt in PROMPTS]
    held = visible(batch)
    for row, layout in enumerate(layouts):
        assert torch.equal(batch.positions[row][held[row]], layout.positions.float())
        assert_same_times(batch.lookup[row][held[row]], layout)
    streams = {
        Modality.VIDEO: torch.randn(2, layouts[0].stream_rows(Modality.VIDEO), 96),
        Modality.AUDIO: torch.randn(2, layouts[0].stream_rows(Modality.AUDIO), 32),
    }
    text = torch.randn(2, presenter.text_rows, model_configs.TEXT_WIDTH)
    times = class_times(torch.tensor([0.1, 0.7]), torch.tensor([0.3, 0.9]))
    packed = pack_batch(layouts)
    with torch.no_grad():
        ours = velocities(networks.transformer, batch.rows(presenter.places), text, streams, times)
        served = networks.transformer(
            streams[Modality.VIDEO].flatten(0, 1),
            streams[Modality.AUDIO].flatten(0, 1),
            torch.cat([text[row][batch.text_held[row]] for row in range(2)]),
            packed.layout,
            times.flatten(),
            packed.layout.time_classes,
            packed.cu_seqlens,
            SdpaAttention(),
        )
    assert ours[Modality.VIDEO].std() > 0.1
    for stream, expected in ((Modality.VIDEO, served.video), (Modality.AUDIO, served.audio)):
        assert torch.allclose(ours[stream].flatten(0, 1), expected, atol=2e-4)


def test_conditions_come_first_and_keep_their_level(networks: TextAndTransformer) -> None:
    for task in TASKS:
        presenter, _ = batch_of(Kind(task, SMALL), networks)
        conditions: tuple[Condition, ...] = presenter.kind.conditions
        assert presenter.held[Modality.VIDEO] == sum(each.video_rows for each in conditions)
        assert presenter.held[Modality.AUDIO] == sum(each.audio_rows for each in conditions)


def test_noise_levels_are_those_of_the_schedule() -> None:
    points = torch.linspace(1, 0, 20)
    for shift in (12.0, 3.0):
        expected = SigmaSchedule.build(20, shift).sigmas
        assert torch.allclose(shifted(points, shift), expected, atol=1e-6)


def test_the_tower_sees_what_serving_shows_it(networks: TextAndTransformer, tmp_path: Path) -> None:
    kind = Kind("first", Format(128, 64, 22))
    write_files(tmp_path, model_configs.processor())
    frame = np.random.default_rng(0).integers(0, 256, (64, 128, 3), dtype=np.uint8)
    blocks = blocks_of(kind.conditions, load_vision_rules(tmp_path))
    pixels = pack_pixels(blocks, [frame])
    presenter, batch = batch_of(kind, networks)
    ids = batch.token_ids[0][batch.text_held[0]]
    inputs = vision_inputs(
        ids.numpy(),
        pixels.pixel_values,
        pixels.image_grid,
        pixels.video_grid,
        image_pad=networks.text.image_pad,
        video_pad=networks.text.video_pad,
        device=torch.device("cpu"),
    )
    ours = torch.from_numpy(frame).permute(2, 0, 1)[None, :, None].float() / 255
    assert torch.allclose(patches(ours)[0], inputs["pixel_values"], atol=1e-6)
    with torch.no_grad():
        seen = networks.text.see(ours)
        features = networks.text(
            batch.token_ids[:1], batch.text_positions[:, :1], presenter.pads, seen
        )
        served = networks.text.model(input_ids=ids[None], use_cache=False, **inputs)
    assert torch.allclose(features[0, : len(ids)], served.last_hidden_state[0], atol=1e-4)
