"""Regions of killed starts are removed, those of living ones never."""

import subprocess
import sys
from pathlib import Path

import pytest

from minimax_h3.serve import shared_memory


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(shared_memory, "SHARED_MEMORY", tmp_path)
    return tmp_path


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def test_a_held_start_is_left_alone_until_its_lock_ends(folder: Path) -> None:
    (folder / "h3_a_region").touch()
    (folder / "h3_b_region").touch()
    (folder / "other").touch()
    with shared_memory.hold("a"):
        assert shared_memory.remove_abandoned() == []
        assert names(folder) == {"h3_a_region", "h3_b_region", "h3lock_a", "other"}
    assert shared_memory.remove_abandoned() == ["a"]
    assert names(folder) == {"h3_b_region", "other"}


def test_a_child_holds_the_lock_after_its_parent(folder: Path) -> None:
    held = shared_memory.hold("a")
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=(held.fileno(),)
    )
    held.close()
    assert shared_memory.remove_abandoned() == []
    child.kill()
    child.wait()
    assert shared_memory.remove_abandoned() == ["a"]


def test_remove_takes_the_lock_with_it(folder: Path) -> None:
    with shared_memory.hold("a"):
        (folder / f"{shared_memory.region_prefix('a')}1").touch()
        shared_memory.remove("a")
    assert names(folder) == set()
