"""Training steps as CUDA graphs against the same steps one by one."""

from pathlib import Path

import pytest
import torch

from build_engines.train_tiny.architecture import new_audio_vae, new_video_vae
from build_engines.train_tiny.audio_learner import AudioLearner
from build_engines.train_tiny.pieces import Piece, run_piece
from build_engines.train_tiny.video_learner import VideoLearner

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def learner(part: str):
    device = torch.device("cuda")
    if part == "video":
        return VideoLearner(
            new_video_vae(0), device, batch=4, held_out=1, canvases=((64, 64), (96, 64))
        )
    return AudioLearner(new_audio_vae(0), device, batch=4, held_out=1, latents=(20, 40))


@pytest.mark.parametrize("part", ["video", "audio"])
def test_graphs_train_like_single_steps(part: str, tmp_path: Path) -> None:
    piece = Piece(seconds=120, max_steps=60, warm_up_steps=5, log_steps=1)
    losses = {}
    for use_graphs in (False, True):
        folder = tmp_path / str(use_graphs)
        log = run_piece(learner(part), piece, folder, use_graphs=use_graphs, say=lambda line: None)
        losses[use_graphs] = [entry["total"] for entry in log.steps]
    first, last = losses[True][0], sum(losses[True][-10:]) / 10
    assert last < 0.7 * first
    assert last == pytest.approx(sum(losses[False][-10:]) / 10, rel=0.2)
