"""The shipped checkpoint, put together from parts with untrained weights."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from build_engines.__main__ import main
from build_engines.h3_tiny import CARD, assemble, part_sizes
from build_engines.train_tiny import model_configs
from build_engines.train_tiny.architecture import new_audio_vae, new_video_vae
from build_engines.train_tiny.dit_learner import TextAndTransformer
from build_engines.train_tiny.vae_files import save_audio_vae, save_video_vae
from build_engines.verify import verify
from minimax_h3.core.errors import CheckpointError
from minimax_h3.dit.loading import load_transformer
from minimax_h3.text.qwen import TruncatedQwen3VL
from minimax_h3.weights.manifest import identify

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    save_video_vae(new_video_vae(0), [0.0] * 24, [0.5] * 24, folder / "video_vae")
    save_audio_vae(new_audio_vae(0), [0.0] * 32, [0.5] * 32, folder / "audio_vae")
    TextAndTransformer(4).save(folder)
    shutil.copytree(folder / "transformer", folder / "transformer_ref")
    return folder


@pytest.fixture(scope="module")
def checkpoint(parts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return assemble(parts, tmp_path_factory.mktemp("out") / "h3-tiny")


@pytest.mark.parametrize("task", ["fl2va", "ref2va"])
def test_the_ordinary_loaders_take_all_of_it(checkpoint: Path, task: str) -> None:
    lines = list(verify(checkpoint, task))
    assert any("text_encoder" in line for line in lines)
    assert load_transformer(identify(checkpoint, task), CPU, torch.float32).config.num_layers == 7


def test_both_partitions_serve_together(checkpoint: Path) -> None:
    assert identify(checkpoint, "combined").tasks == ("t2va", "fl2va", "ref2va")
    assert (checkpoint / "Ref2VA" / "text_encoder").is_symlink()


def test_the_whole_is_small_enough(checkpoint: Path) -> None:
    files = [path for path in checkpoint.rglob("*") if path.is_file() and not path.is_symlink()]
    seen = {path.resolve() for path in files}
    assert sum(path.stat().st_size for path in seen) <= model_configs.WHOLE_BYTES
    sizes = part_sizes(checkpoint / "FL2VA")
    assert sizes["video_vae"] <= model_configs.BUDGET_BYTES["video_vae"]
    assert sizes["audio_vae"] <= model_configs.BUDGET_BYTES["audio_vae"]


def test_layers_that_pass_on_change_no_bit(checkpoint: Path) -> None:
    """Ten layers in training, fifty in service."""
    trained = TextAndTransformer(4).text
    for parameter in trained.parameters():
        parameter.data = parameter.data.bfloat16().float()  # the file holds 16 bit
    served = TruncatedQwen3VL.load(identify(checkpoint, "fl2va"), CPU, torch.float32)
    ids = torch.randint(0, 256, (1, 20), generator=torch.Generator().manual_seed(0))
    positions = trained.positions(ids[0], {})[:, None]
    with torch.no_grad():
        ours = trained(ids, positions, torch.tensor([], dtype=torch.int64), None)
    assert torch.equal(ours[0], served.encode(ids.numpy()))


def test_the_card_says_what_is_measured_and_what_is_not(
    parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = tmp_path / "reports"
    reports.mkdir()
    facts = {"documents": 640, "steps": 20, "seconds": 3.5, "best_score": -0.25}
    (reports / "training_FL2VA.json").write_text(json.dumps(facts))
    shares = {"shape": 0.93, "motion": 0.7}
    found = {name: {"value": value, "cases": 100} for name, value in shares.items()}
    figures = {"points": 20, "figures": found}
    (reports / "eval.json").write_text(json.dumps(figures))
    out = tmp_path / "h3-tiny"
    words = ["h3-tiny", str(out), "--from", str(parts), "--reports", str(reports)]
    assert main(words) == 0
    card = (out / CARD).read_text()
    assert "| FL2VA | 640 | 20 | 3.5 | -0.25 |" in card
    assert "| Ref2VA | not measured |" in card
    assert "| shape | 0.93 |  | 100 |" in card
    assert "| motion | 0.7 | 0.8 or more | 100 |" in card
    assert "MiniMax H3 Community License" in card
    assert main(words) == 1
    assert "exists and is not empty" in capsys.readouterr().err


def test_a_part_that_is_missing_is_named(parts: Path, tmp_path: Path) -> None:
    alone = tmp_path / "parts"
    shutil.copytree(parts, alone)
    shutil.rmtree(alone / "transformer_ref")
    root = assemble(alone, tmp_path / "one")
    assert identify(root, "fl2va").tasks == ("t2va", "fl2va")
    assert not (root / "Ref2VA").exists()
    shutil.rmtree(alone / "audio_vae")
    with pytest.raises(CheckpointError, match="audio_vae: missing"):
        assemble(alone, tmp_path / "two")
