"""Finding and ending the processes of models."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from minimax_h3.serve.installation import STUB
from minimax_h3.serve.stubs import find_stubs, is_alive, kill_all, wait_gone


@pytest.fixture
def child(tmp_path: Path) -> Iterator[subprocess.Popen]:
    """A child of this process whose command line is that of a stub of the model `jobs`."""
    script = tmp_path / "repository" / "jobs" / "1" / "model.py"
    script.parent.mkdir(parents=True)
    script.write_text("import time\ntime.sleep(60)\n")
    words = [str(tmp_path / STUB), str(script)]
    process = subprocess.Popen(words, executable=sys.executable)
    yield process
    process.kill()
    process.wait()


def test_a_stub_is_found_by_its_command_line(child: subprocess.Popen) -> None:
    found = find_stubs(os.getpid())
    assert [stub.pid for stub in found["jobs"]] == [child.pid]


def test_the_oldest_comes_first_after_process_ids_began_again(
    child: subprocess.Popen, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = psutil.Process(child.pid).cmdline()
    later = subprocess.Popen(words, executable=sys.executable)
    plain = psutil.Process.create_time
    try:
        for older, younger in ((child, later), (later, child)):
            started = {older.pid: 4e9, younger.pid: 4e9 + 1}
            monkeypatch.setattr(
                psutil.Process,
                "create_time",
                lambda process, told=started: told.get(process.pid) or plain(process),
            )
            found = find_stubs(os.getpid())["jobs"]
            assert [stub.pid for stub in found] == [older.pid, younger.pid]
    finally:
        later.kill()
        later.wait()


def test_a_zombie_is_not_alive_and_not_found(child: subprocess.Popen) -> None:
    (stub,) = find_stubs(os.getpid())["jobs"]
    assert is_alive(stub)
    child.kill()
    assert wait_gone([stub], 5.0) == []
    assert stub.status() == psutil.STATUS_ZOMBIE  # nobody has waited for it yet
    assert not is_alive(stub)
    assert "jobs" not in find_stubs(os.getpid())
    child.wait()
    assert not is_alive(stub)
    kill_all([stub])  # no error, and nobody else of that number is hit


def test_a_stopped_process_is_ended_too(child: subprocess.Popen) -> None:
    (stub,) = find_stubs(os.getpid())["jobs"]
    stub.suspend()
    assert is_alive(stub)
    assert wait_gone([stub], 0.1) == [stub]
    kill_all([stub])
    assert wait_gone([stub], 5.0) == []


def test_a_server_that_has_ended_has_no_stubs(child: subprocess.Popen) -> None:
    child.kill()
    child.wait()
    assert find_stubs(child.pid) == {}
