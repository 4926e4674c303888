"""A killed `h3 serve` takes its server along, an orderly one does not need the guardian."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from minimax_h3.serve import guardian as guardian_module
from minimax_h3.serve import shared_memory
from minimax_h3.serve.guardian import Guardian

# Starts a "server" of two processes in a group of their own, under a guardian, and waits.
STARTER = """
import pathlib, subprocess, sys, time
from minimax_h3.serve.guardian import Guardian
guardian = Guardian(sys.argv[1], pathlib.Path(sys.argv[2]), lambda line: print(line, flush=True))
child = "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True)\\n"
server = subprocess.Popen(
    [sys.executable, "-c", child + "time.sleep(60)"],
    start_new_session=True, stdout=subprocess.PIPE, text=True,
)
guardian.watch_over(server.pid)
print(guardian.pid, server.pid, server.stdout.readline().strip(), flush=True)
time.sleep(60)
"""


@pytest.fixture
def region() -> Iterator[Path]:
    """A region of a start `test_guardian_...` and its lock."""
    run_id = f"test_guardian_{time.monotonic_ns()}"
    region = shared_memory.SHARED_MEMORY / f"{shared_memory.region_prefix(run_id)}region"
    region.touch()
    yield region
    shared_memory.remove(run_id)


def run_id_of(region: Path) -> str:
    return region.name.removeprefix("h3_").removesuffix("_region")


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_dead_starter_leaves_is_ended(
    region: Path, tmp_path: Path, number: signal.Signals
) -> None:
    log = tmp_path / "log"
    words = [sys.executable, "-c", STARTER, run_id_of(region), str(log)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        pids = [int(word) for word in starter.stdout.readline().split()]
        assert all(lives(pid) for pid in pids)
        assert region.exists()
        starter.send_signal(number)
    wait_until(lambda: not any(lives(pid) for pid in pids))  # the guardian goes too
    assert not region.exists()
    assert f"process group {pids[1]} is ended" in log.read_text()


def test_a_guardian_that_is_dismissed_ends_nothing(region: Path, tmp_path: Path) -> None:
    server = subprocess.Popen(["sleep", "60"], start_new_session=True)
    guardian = Guardian(run_id_of(region), tmp_path / "log", print)
    guardian.watch_over(server.pid)
    guardian.dismiss()
    assert not lives(guardian.pid)
    assert server.poll() is None
    assert region.exists()  # whoever stops in order has removed it already
    server.kill()
    server.wait()


def test_a_guardian_survives_a_signal_to_the_whole_service(region: Path, tmp_path: Path) -> None:
    guardian = Guardian(run_id_of(region), tmp_path / "log", print)
    wait_until(lambda: _ignored(guardian.pid) & (1 << (signal.SIGTERM - 1)) != 0)
    psutil.Process(guardian.pid).terminate()
    time.sleep(0.1)
    assert lives(guardian.pid)
    guardian.dismiss()


def _ignored(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("SigIgn")).split()[1], 16)


def test_a_guardian_that_is_killed_has_a_successor_that_knows_all(
    region: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    words = [sys.executable, "-c", STARTER, run_id_of(region), str(log)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        guardian, *server = (int(word) for word in starter.stdout.readline().split())
        for _ in range(2):
            psutil.Process(guardian).kill()
            told = starter.stdout.readline()
            assert told.startswith(f"guardian {guardian} ended with -9; process ")
            guardian = int(told.split()[-3])
            assert lives(guardian)
        assert all(lives(pid) for pid in server)
        starter.kill()
    wait_until(lambda: not any(lives(pid) for pid in (guardian, *server)))
    assert not region.exists()
    assert f"process group {server[0]} is ended" in log.read_text()


def test_a_guardian_that_cannot_be_started_is_tried_again(
    region: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    guardian = Guardian(run_id_of(region), tmp_path / "log", said.append)
    with monkeypatch.context() as poor:
        poor.setattr(guardian_module, "RETRY_S", 0.05)
        poor.setattr(guardian, "_log_file", tmp_path / "missing" / "log")
        psutil.Process(guardian.pid).kill()
        wait_until(lambda: len(said) >= 2)
        assert "no other one: " in said[0]
    wait_until(lambda: "took over" in said[-1])
    assert lives(guardian.pid)
    guardian.dismiss()
    assert not lives(guardian.pid)


def test_a_dismissed_guardian_has_no_successor(region: Path, tmp_path: Path) -> None:
    said: list[str] = []
    guardian = Guardian(run_id_of(region), tmp_path / "log", said.append)
    psutil.Process(guardian.pid).kill()
    guardian.dismiss()
    time.sleep(0.1)
    assert not lives(guardian.pid)
    assert len(said) <= 1
