"""One process at a time has the turn, it sees who waits, and a dead one has it no longer."""

import logging
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from minimax_h3.core.errors import ConfigError
from minimax_h3.stages import gpu_turn
from minimax_h3.stages.gpu_turn import GpuTurn

LOG = logging.getLogger("test")
HOLDER = """
import logging, sys
from pathlib import Path
from minimax_h3.stages.gpu_turn import GpuTurn
GpuTurn(Path(sys.argv[1]), logging.getLogger()).take()
print("taken", flush=True)
sys.stdin.read()
"""


def until(reached, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, "not reached in time"
        time.sleep(0.002)


def test_the_second_waits_until_the_first_gives(tmp_path: Path) -> None:
    first, second = GpuTurn(tmp_path, LOG), GpuTurn(tmp_path, LOG)
    first.take()
    assert not first.is_wanted()
    waiting = threading.Thread(target=second.take)
    waiting.start()
    until(first.is_wanted)
    assert waiting.is_alive()
    first.give()
    waiting.join(5)
    assert not waiting.is_alive()
    assert not second.is_wanted()


def test_a_killed_process_has_the_turn_no_longer(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"taken\n"
        turn = GpuTurn(tmp_path, LOG)
        waiting = threading.Thread(target=turn.take)
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive()
        holder.kill()
        waiting.join(5)
        assert not waiting.is_alive()


def test_a_long_wait_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gpu_turn, "_TOLD_AFTER_S", 0.02)
    first, second = GpuTurn(tmp_path, LOG), GpuTurn(tmp_path, LOG)
    first.take()
    waiting = threading.Thread(target=second.take)
    waiting.start()
    until(lambda: caplog.records)
    time.sleep(0.05)
    first.give()
    waiting.join(5)
    assert [record.getMessage() for record in caplog.records] == [
        "has waited 0 s for its turn at the GPU"
    ]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"offload: .*\.gpu-turn cannot be made \(No such file"):
        GpuTurn(tmp_path / "absent", LOG)
