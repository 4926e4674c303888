"""The renderer's command: writes every file, and notices a stale one."""

from pathlib import Path

import pytest

from minimax_h3.core.config import StageConfig
from minimax_h3.core.contracts import ENSEMBLE, MODELS
from minimax_h3.triton_io.render import main, stale_files, write_repository


def test_writes_every_model_and_the_ensembles_version_folder(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 0
    folders = {file.parent.name for file in tmp_path.glob("*/config.pbtxt")}
    assert folders == {*MODELS, ENSEMBLE.name}
    assert (tmp_path / ENSEMBLE.name / "1" / ".gitkeep").is_file()
    assert main([str(tmp_path), "--check"]) == 0


@pytest.mark.parametrize("damage", ["edit", "delete"])
def test_check_finds_a_stale_file_and_repairs_nothing(tmp_path: Path, damage: str) -> None:
    write_repository(tmp_path, StageConfig())
    file = tmp_path / "jobs" / "config.pbtxt"
    if damage == "edit":
        file.write_text(file.read_text().replace("count: 1", "count: 2"))
    else:
        file.unlink()
    assert stale_files(tmp_path, StageConfig()) == [file]
    assert main([str(tmp_path), "--check"]) == 1
    assert stale_files(tmp_path, StageConfig()) == [file]


def test_models_may_be_left_out(tmp_path: Path) -> None:
    files = write_repository(tmp_path, StageConfig(), ["jobs", "muxer"])
    assert {file.parent.name for file in files} == {"jobs", "muxer", ENSEMBLE.name}
    assert {folder.name for folder in tmp_path.iterdir()} == {"jobs", "muxer", ENSEMBLE.name}


def test_other_parameters_make_other_files(tmp_path: Path) -> None:
    write_repository(tmp_path, StageConfig(max_jobs=9))
    assert len(stale_files(tmp_path, StageConfig())) == len(MODELS)
