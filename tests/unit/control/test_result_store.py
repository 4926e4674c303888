"""Kept results: bounded by bytes and age, whole or not at all."""

import json
import os
from pathlib import Path

import pytest

from minimax_h3.control.result_store import ResultStore
from minimax_h3.core.errors import UnknownResultError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def job(number: int) -> str:
    return f"{number:032x}"


def metadata(alias: str = "") -> str:
    return json.dumps({"request_id": alias})


def age(folder: Path, number: int, seconds: float) -> None:
    os.utime(folder / job(number), (seconds, seconds))


def test_a_result_comes_back_by_either_id(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "results", 1000)
    clips = [bytes([index]) * 3 for index in range(12)]
    assert store.put(job(1), clips, metadata("mine"))
    assert store.get(job(1)).clips == clips
    assert store.get("mine").metadata == metadata("mine")
    assert (tmp_path / "results").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["", "..", "../results", "/etc", job(2), "*"])
def test_other_names_find_nothing(tmp_path: Path, name: str) -> None:
    store = ResultStore(tmp_path / "results", 1000)
    store.put(job(1), [b"x"], metadata())
    with pytest.raises(UnknownResultError, match="no result of"):
        store.get(name)


def test_the_oldest_make_room(tmp_path: Path) -> None:
    clock = Clock()
    store = ResultStore(tmp_path, 250, clock=clock)
    for number in range(1, 4):
        store.put(job(number), [b"x" * 80], metadata())
        age(tmp_path, number, number)
    assert sorted(path.name for path in tmp_path.iterdir()) == [job(2), job(3)]
    assert store.put(job(9), [b"x" * 251], metadata()) is False
    assert store.get(job(3)).clips == [b"x" * 80]


def test_a_result_is_forgotten_in_time(tmp_path: Path) -> None:
    clock = Clock()
    store = ResultStore(tmp_path, 1000, keep_s=60, clock=clock)
    store.put(job(1), [b"x"], metadata("mine"))
    age(tmp_path, 1, 0)
    clock.now = 59
    assert store.get("mine").clips == [b"x"]
    clock.now = 61
    for name in (job(1), "mine"):
        with pytest.raises(UnknownResultError):
            store.get(name)
    store.put(job(2), [b"y"], metadata())
    assert [path.name for path in tmp_path.iterdir()] == [job(2)]


def test_nothing_is_kept_when_nothing_may_be(tmp_path: Path) -> None:
    assert ResultStore(tmp_path / "none", 0).put(job(1), [b"x"], metadata()) is False
    assert not (tmp_path / "none").exists()


def test_a_result_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        ResultStore(tmp_path, 1000).put(job(1), [b"x"], metadata())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_somebody_else_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    store = ResultStore(tmp_path, 1000)
    with pytest.raises(PermissionError, match="belongs to another user"):
        store.put(job(1), [b"x"], metadata())
    with pytest.raises(UnknownResultError):
        store.get(job(1))
