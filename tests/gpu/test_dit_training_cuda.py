"""Compiled training steps of the transformer against plain ones, and as CUDA graphs."""

import pytest
import torch

from build_engines.train_tiny.architecture import new_audio_vae, new_video_vae
from build_engines.train_tiny.dit_learner import DitLearner, LearnerOptions, TextAndTransformer
from build_engines.train_tiny.dit_ops import PLAIN, DitOps, compiled_ops
from build_engines.train_tiny.documents import Format
from build_engines.train_tiny.latent_pool import Encoders, fill_pool
from build_engines.train_tiny.pieces import Piece, Steps
from build_engines.train_tiny.text_model import TextModel
from build_engines.train_tiny.vae_files import save_audio_vae, save_video_vae

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.timeout(600),
    # the compiler makes one of torch's own functions in a way that torch calls old
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]
TOY = Format(64, 32, 22)
STEPS = 24


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory):
    vaes, device = tmp_path_factory.mktemp("vaes"), torch.device("cuda")
    save_video_vae(new_video_vae(0), [0.0] * 24, [0.5] * 24, vaes / "video_vae")
    save_audio_vae(new_audio_vae(0), [0.0] * 32, [0.5] * 32, vaes / "audio_vae")
    encoders = Encoders(vaes, TextModel(0).to(device), device)
    return {(TOY, "text"): fill_pool(encoders, TOY, "text", 1, 8, chunk=8)}


def learner_of(pools, ops: DitOps) -> DitLearner:
    options = LearnerOptions(batch=4, evaluation=2)
    learner = DitLearner(TextAndTransformer(0), torch.device("cuda"), pools, pools, options, ops)
    torch.manual_seed(3)
    with torch.no_grad():  # closed branches would hide what they compute
        for name, parameter in learner.module.transformer.named_parameters():
            if name.endswith(("adaln.weight", "out.weight")):
                parameter.normal_(std=0.1)
    return learner


@pytest.fixture(scope="module")
def compiled() -> DitOps:
    return compiled_ops()


def test_losses_and_gradients_are_those_of_plain_steps(pools, compiled: DitOps) -> None:
    losses, gradients = [], []
    for ops in (PLAIN, compiled):
        learner = learner_of(pools, ops)
        for kind in learner._sources:  # four kinds, of three row counts
            torch.manual_seed(5)
            found = learner.losses(kind, learner.draw(kind, 0).to("cuda"))
            torch.autograd.backward(found["total"])
            losses.append(float(found["total"].detach()))
        gradients.append([each.grad for each in learner.module.transformer.parameters()])
    half = len(losses) // 2
    assert losses[half:] == pytest.approx(losses[:half], rel=0.01)
    for ours, plain in zip(gradients[1], gradients[0], strict=True):
        assert (ours - plain).norm() <= 0.05 * plain.norm() + 1e-6


def test_compiled_steps_are_captured(pools, compiled: DitOps) -> None:
    """All kinds go from warm-up to replay, and train like plain steps one by one."""
    ends = {}
    for ops, use_graphs in ((PLAIN, False), (compiled, True)):
        learner = learner_of(pools, ops)
        torch.manual_seed(7)
        steps = Steps(learner, Piece(seconds=600), use_graphs)
        learner._order = list(learner._sources) * STEPS
        losses = [float(steps.run(step, 1e-3)["total"]) for step in range(4 * STEPS)]
        ends[use_graphs] = sum(losses[-16:]) / 16
        assert ends[use_graphs] < 0.5 * sum(losses[:16]) / 16
    assert len(steps._graphs) == 4
    assert ends[True] == pytest.approx(ends[False], rel=0.3)
