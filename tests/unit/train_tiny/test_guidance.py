"""Guidance learned in training: what is hidden from the second forward, and what the target is."""

from pathlib import Path

import pytest
import torch

from build_engines.train_tiny.architecture import new_audio_vae, new_video_vae
from build_engines.train_tiny.dit_forward import Rows, velocities
from build_engines.train_tiny.dit_learner import DitLearner, LearnerOptions, TextAndTransformer
from build_engines.train_tiny.dit_ops import PLAIN
from build_engines.train_tiny.documents import REFERENCE_TASKS, Format
from build_engines.train_tiny.guidance import without_captions, without_references
from build_engines.train_tiny.latent_pool import Encoders, fill_pool
from build_engines.train_tiny.text_model import TextModel
from build_engines.train_tiny.vae_files import save_audio_vae, save_video_vae
from minimax_h3.core.constants import Modality

CPU = torch.device("cpu")
TOY = Format(64, 32, 22)
BATCH = 3


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Encoders:
    folder: Path = tmp_path_factory.mktemp("vaes")
    save_video_vae(new_video_vae(0), [0.0] * 24, [0.5] * 24, folder / "video_vae")
    save_audio_vae(new_audio_vae(0), [0.0] * 32, [0.5] * 32, folder / "audio_vae")
    return Encoders(folder, TextModel(0), CPU)


@pytest.fixture(scope="module", params=["text", *REFERENCE_TASKS])
def learner(request: pytest.FixtureRequest, encoders: Encoders) -> DitLearner:
    pools = {(TOY, request.param): fill_pool(encoders, TOY, request.param, 1, 4, chunk=2)}
    options = LearnerOptions(batch=BATCH, evaluation=2)
    learner = DitLearner(TextAndTransformer(0), CPU, pools, pools, options)
    torch.manual_seed(3)
    with torch.no_grad():  # closed branches and heads would hide what they compute
        for name, parameter in learner.module.transformer.named_parameters():
            if name.endswith(("adaln.weight", "out.weight")):
                parameter.normal_(std=0.1)
    return learner


@pytest.fixture(scope="module")
def parts(learner: DitLearner):
    """A source, and what its velocities are made from."""
    kind, source = list(learner._sources.items())[-1]  # of keyframes, the kind with both
    batch = learner.draw(kind, 0)
    torch.manual_seed(11)
    given = {
        name: torch.randn_like(rows) for name, rows in learner._clean(source, batch.items).items()
    }
    times = torch.rand(BATCH, 4)
    with torch.no_grad():
        text = learner.module.text(
            batch.token_ids, batch.text_positions, source.columns, learner._seen(source, batch)
        )
    return source, batch.rows(source.presenter.places), text, given, times


def run(learner: DitLearner, parts, weight: float, bare=None) -> dict[Modality, torch.Tensor]:
    learner._options.guidance = weight
    try:
        return learner._velocities(*parts, PLAIN, bare)
    finally:
        learner._options.guidance = 0.0


def test_bare_documents_are_those_of_one_text_row_and_blank_references(
    learner: DitLearner, parts
) -> None:
    """Against a batch that never had more text than its first row."""
    source, rows, text, given, times = parts
    held, media = source.presenter.held, rows.positions.shape[1] - text.shape[1]
    short = Rows(
        rows.places,
        rows.text_held[:, :1],
        torch.cat((rows.positions[:, :1], rows.positions[:, -media:]), dim=1),
        torch.cat((rows.lookup[:, :1], rows.lookup[:, -media:]), dim=1),
    )
    streams = {name: each.clone() for name, each in given.items()}
    if source.presenter.kind.task in REFERENCE_TASKS:
        for name, each in streams.items():
            each[:, : held[name]] = 0
    with torch.no_grad():
        wanted = velocities(learner.module.transformer, short, text[:, :1], streams, times)
        found = run(learner, parts, 0.0, torch.ones(BATCH, dtype=torch.bool))
        full = run(learner, parts, 0.0)
    for name, each in found.items():
        torch.testing.assert_close(each, wanted[name][:, held[name] :], rtol=1e-4, atol=1e-5)
        assert (each - full[name]).abs().max() > 1e-3


def test_the_target_moves_by_what_prompt_and_references_change(learner: DitLearner, parts) -> None:
    """Of documents with a prompt; those without are trained on true clips."""
    bare = torch.tensor([True, False, False])
    with torch.no_grad():
        full, ground = (
            run(learner, parts, 0.0, torch.full((BATCH,), each)) for each in (False, True)
        )
        found = run(learner, parts, 0.5, bare)
    for name, each in found.items():
        torch.testing.assert_close(each[0], ground[name][0])
        mixed = 0.5 * full[name][1:] + 0.5 * ground[name][1:]
        torch.testing.assert_close(each[1:], mixed, rtol=1e-4, atol=1e-5)


def test_gradients_are_those_of_a_constant_target(learner: DitLearner, parts) -> None:
    """Else the easiest way to the target would be to make prompts change nothing."""
    weight = learner.module.transformer.get_parameter("video_out.weight")

    def gradient(velocity: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = (velocity - target).square().mean()
        return torch.autograd.grad(loss, weight)[0]

    found = run(learner, parts, 0.5)[Modality.VIDEO]
    full = run(learner, parts, 0.0)[Modality.VIDEO]
    torch.testing.assert_close(
        gradient(found, torch.zeros_like(found)),
        gradient(full, (full - found).detach()),
        rtol=1e-4,
        atol=1e-6,
    )


def test_one_in_ten_trains_without_a_prompt_and_only_with_guidance(
    learner: DitLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Tensor | None] = []
    monkeypatch.setattr(
        learner, "_losses", lambda source, batch, ops, *, bare: seen.append(bare) or {}
    )
    kind = next(iter(learner._sources))
    batch = learner.draw(kind, 0)
    for weight in (0.0, 0.5):
        learner._options.guidance = weight
        for _ in range(400):
            learner.losses(kind, batch)
    learner._options.guidance = 0.0
    assert seen[:400] == [None] * 400
    assert torch.stack(seen[400:]).float().mean() == pytest.approx(0.1, abs=0.035)


def test_nothing_else_is_hidden() -> None:
    held = torch.arange(4) < torch.tensor([[3], [2]])
    rows = Rows((), held, torch.zeros(2, 4, 3), torch.zeros(2, 4, dtype=torch.int64))
    bare = torch.tensor([False, True])
    shown = without_captions(rows, bare)
    assert shown.text_held.tolist() == [[True] * 3 + [False], [True] + [False] * 3]
    streams = {Modality.VIDEO: torch.ones(2, 3, 1), Modality.AUDIO: torch.ones(2, 2, 1)}
    blanked = without_references(streams, {Modality.VIDEO: 2, Modality.AUDIO: 0}, bare)
    assert blanked[Modality.VIDEO][..., 0].tolist() == [[1, 1, 1], [0, 0, 1]]
    assert blanked[Modality.AUDIO].sum() == 4
