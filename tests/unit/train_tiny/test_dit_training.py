"""Training of text encoder and transformer on toy documents, and what it leaves behind."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from build_engines.h3_tiny import part_sizes
from build_engines.train_tiny import dit_learner, model_configs
from build_engines.train_tiny.architecture import new_audio_vae, new_video_vae
from build_engines.train_tiny.captions import says_bounce
from build_engines.train_tiny.dit_files import resume_text
from build_engines.train_tiny.dit_learner import (
    DitLearner,
    LearnerOptions,
    TextAndTransformer,
    held_sigmas,
)
from build_engines.train_tiny.documents import REFERENCE_TASKS, Format
from build_engines.train_tiny.latent_pool import Encoders, fill_pool
from build_engines.train_tiny.pieces import Piece, Steps, run_piece
from build_engines.train_tiny.text_model import TextModel
from build_engines.train_tiny.vae_files import save_audio_vae, save_video_vae
from minimax_h3.core.constants import Modality
from minimax_h3.core.errors import CheckpointError
from minimax_h3.core.lengths import audio_rows, video_rows
from minimax_h3.packing.patchify import video_to_rows

CPU = torch.device("cpu")
TOY = Format(64, 32, 22)


@pytest.fixture(scope="module")
def vaes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vaes")
    save_video_vae(new_video_vae(0), [0.0] * 24, [0.5] * 24, folder / "video_vae")
    save_audio_vae(new_audio_vae(0), [0.0] * 32, [0.5] * 32, folder / "audio_vae")
    return folder


@pytest.fixture(scope="module")
def encoders(vaes: Path) -> Encoders:
    return Encoders(vaes, TextModel(0), CPU)


def learner_of(encoders: Encoders, tasks, count: int = 4, batch: int = 4) -> DitLearner:
    pools = {(TOY, task): fill_pool(encoders, TOY, task, 1, count, chunk=2) for task in tasks}
    options = LearnerOptions(batch=batch, evaluation=2)
    return DitLearner(TextAndTransformer(0), CPU, pools, pools, options)


@pytest.mark.parametrize("task", ["text", *REFERENCE_TASKS])
def test_pools_hold_what_documents_need(task: str, encoders: Encoders) -> None:
    learner = learner_of(encoders, [task], count=3)
    for source in learner._sources.values():
        presenter, pool = source.presenter, source.pool
        assert len(pool.prompts) == len(pool.video) == 3
        assert pool.video.shape[1:] == (video_rows(64, 32, 22), 96)
        assert pool.audio.shape[1:] == (audio_rows(22), 32)
        visual = pool.visual[:, source.visual].shape[1]
        assert visual == presenter.held[Modality.VIDEO]
        assert pool.sound.shape[1] == presenter.held[Modality.AUDIO]
        assert pool.features[:, source.pads].shape[1] == len(source.columns)


def test_noise_levels_follow_the_shifts_that_the_checkpoint_states(
    encoders: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained at one schedule and sampled at another, shapes blur."""
    seen: list[torch.Tensor] = []
    plain = dit_learner.class_times

    def times(video: torch.Tensor, audio: torch.Tensor) -> torch.Tensor:
        seen.extend((1 - video, 1 - audio))
        return plain(video, audio)

    monkeypatch.setattr(dit_learner, "class_times", times)
    monkeypatch.setattr(model_configs, "SIGMA_SHIFTS", {"video": 9.0, "audio": 2.0})
    learner = learner_of(encoders, ["text"])
    kind = next(iter(learner._sources))
    learner.losses(kind, learner.draw(kind, 0))
    points = [
        sigma / (shift - (shift - 1) * sigma) for sigma, shift in zip(seen, (9, 2), strict=True)
    ]
    torch.testing.assert_close(points[0], points[1])


def test_bounces_are_drawn_more_often_at_any_noise_level(encoders: Encoders) -> None:
    """Noise levels rise with the place in a batch, so bounces must not come first."""
    learner = learner_of(encoders, ["text"], count=12, batch=64)
    (kind, source), *_ = learner._sources.items()
    assert {says_bounce(source.pool.prompts[item][-1]) for item in source.bouncing} == {True}
    assert 0 < len(source.bouncing) < 12

    def bouncing() -> np.ndarray:
        items = [learner.draw(kind, step).items.numpy() for step in range(8)]
        return np.isin(items, source.bouncing)

    by_chance = bouncing().mean()
    assert by_chance == pytest.approx(len(source.bouncing) / 12, abs=0.08)
    learner._options.bouncing = 0.5
    drawn = bouncing()
    expected = 0.5 + 0.5 * len(source.bouncing) / 12
    assert drawn.mean() == pytest.approx(expected, abs=0.08)
    assert drawn[:, :32].mean() == pytest.approx(drawn[:, 32:].mean(), abs=0.12)


def test_a_pool_ends_in_time(encoders: Encoders) -> None:
    said: list[str] = []
    pool = fill_pool(encoders, TOY, "text", 1, 64, chunk=2, seconds=0, say=said.append)
    assert len(pool.prompts) == 2
    assert "2 documents" in said[0]


def test_rows_are_those_of_the_serving_encoder(vaes: Path, encoders: Encoders) -> None:
    """Target rows are the posterior's mean; the serving encoder adds its posterior's noise."""
    module = new_video_vae(0)
    frames = torch.rand(1, 3, 22, 32, 64)
    rows = encoders.video_rows(frames)
    mean, std = (each.view(-1, 1, 1, 1) for each in encoders._pixels)
    with torch.no_grad():
        latents = module.encode((frames - mean) / std).latent_dist.mode()[0] / 0.5
    assert torch.allclose(rows[0], video_to_rows(latents), atol=0.02)  # weights rest in fp16
    sampled = encoders.video_rows(frames[:, :, :1], sampled=True)
    assert sampled.shape == (1, 2, 96)
    assert 0 < (sampled - encoders.video_rows(frames[:, :, :1])).std() < 0.5


@pytest.mark.whole_soak
@pytest.mark.timeout(600)
def test_an_overfit_batch_is_learned(encoders: Encoders) -> None:
    """Every kind of keyframe document: the loss of both streams falls by a lot."""
    torch.manual_seed(0)
    learner = learner_of(encoders, ["text"], count=2, batch=2)
    steps = Steps(learner, Piece(seconds=600), use_graphs=False)
    losses = [steps.run(step, 2e-3) for step in range(45)]
    for stream in ("video", "audio"):
        values = [float(entry[stream]) for entry in losses]
        assert np.mean(values[-8:]) < 0.75 * np.mean(values[:5]), stream


@pytest.mark.whole_soak
@pytest.mark.timeout(600)
def test_references_are_learned_from(encoders: Encoders) -> None:
    torch.manual_seed(0)
    learner = learner_of(encoders, REFERENCE_TASKS, count=2, batch=2)
    steps = Steps(learner, Piece(seconds=600), use_graphs=False)
    losses = [float(steps.run(step, 1e-3)["total"]) for step in range(24)]
    assert np.mean(losses[-6:]) < 0.9 * np.mean(losses[:4])
    assert {learner.kind_of(step).split()[0] for step in range(60)} == set(REFERENCE_TASKS)


def test_gradients_reach_every_trained_tensor(encoders: Encoders) -> None:
    torch.manual_seed(0)
    learner = learner_of(encoders, ["text"], count=2)
    with torch.no_grad():
        for parameter in learner.module.transformer.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    kind = next(name for name in learner._sources if name.startswith("both"))
    learner.losses(kind, learner.draw(kind, 0))["total"].backward()
    silent = {
        name
        for name, parameter in learner.module.named_parameters()
        if parameter.requires_grad and (parameter.grad is None or not parameter.grad.any())
    }
    assert not silent


@pytest.mark.whole_soak
def test_a_piece_is_resumed_from_its_files(encoders: Encoders, tmp_path: Path) -> None:
    learner = learner_of(encoders, ["text"], count=2, batch=2)
    piece = Piece(seconds=600, max_steps=3, warm_up_steps=1, averaging=1.0, log_steps=1)
    log = run_piece(learner, piece, tmp_path, use_graphs=False, say=lambda line: None)
    assert set(log.evaluations[-1]) > {"video", "audio", "score"}
    other = learner_of(encoders, ["text"], count=2, batch=2)
    other.module.resume(tmp_path)
    assert other.evaluate()["score"] == pytest.approx(log.evaluations[-1]["score"], rel=0.02)
    with pytest.raises(CheckpointError, match="nothing to resume"):
        resume_text(other.module.text, tmp_path / "nowhere")


def test_what_is_trained_fits_the_budget(tmp_path: Path) -> None:
    TextAndTransformer(0).save(tmp_path)
    sizes = part_sizes(tmp_path)
    budget = model_configs.BUDGET_BYTES
    assert sizes["text_encoder"] <= budget["text_encoder"]
    assert sizes["transformer"] <= budget["transformer FL2VA"]
    assert budget["transformer FL2VA"] == budget["transformer Ref2VA"]
    assert sum(budget.values()) <= model_configs.WHOLE_BYTES - 500_000
    assert budget["video_vae"] + budget["audio_vae"] <= 14_000_000


def test_levels_of_conditions() -> None:
    levels = held_sigmas(Modality.VIDEO, 2, 4, torch.tensor([0.5]))
    assert levels[0].tolist() == pytest.approx([0.001, 0.001, 0.5, 0.5])
    assert held_sigmas(Modality.AUDIO, 1, 2, torch.tensor([0.5]))[0].tolist() == [0.0, 0.5]


@pytest.mark.parametrize("task", ["text", "clip"])
def test_a_step_reads_no_value_back(task: str, encoders: Encoders, whole_soak: bool) -> None:
    """A CUDA graph cannot hold a step that asks for a number; fake tensors have none to give."""
    learner = learner_of(encoders, [task], count=2, batch=2)
    kinds = list(learner._sources)
    for kind in kinds if whole_soak else {kinds[0], kinds[-1]}:
        batch = learner.draw(kind, 0)
        with FakeTensorMode(allow_non_fake_inputs=True):
            losses = learner.losses(kind, batch)
            torch.autograd.backward(losses["total"])
            with pytest.raises(DataDependentOutputException):
                losses["total"].item()
