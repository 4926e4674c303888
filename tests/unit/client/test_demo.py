"""The demo's care for its server: found when ready, and gone afterwards whatever happened."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from h3_client import demo

# Stands in for `h3 serve`: writes the facts file, runs a "tritonserver" in a session of its own.
SERVE = """
import json, pathlib, signal, subprocess, sys, time
folder = pathlib.Path(sys.argv[sys.argv.index("--run-dir") + 1]) / "start"
folder.mkdir(parents=True)
sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
triton = subprocess.Popen(sleeper, start_new_session=True)
def stop(number, frame):
    if MODE != "stubborn":
        triton.kill(); triton.wait(); sys.exit(0)
signal.signal(signal.SIGTERM, stop)
(folder.parent / "pids").write_text("%d %d" % (triton.pid, __import__("os").getpid()))
facts = {"ready": MODE != "never", "pid": triton.pid, "grpc_url": "127.0.0.1:9"}
if MODE == "dies":
    triton.kill(); sys.exit(7)
(folder / "server.json").write_text(json.dumps(facts))
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch):
    def use(mode: str) -> None:
        command = (sys.executable, "-c", f"MODE = {mode!r}\n{SERVE}")
        monkeypatch.setattr(demo, "SERVE", command)
        monkeypatch.setattr(demo, "STOP_TIMEOUT_S", 0.5 if mode == "stubborn" else 10)
        monkeypatch.setattr(demo, "READY_TIMEOUT_S", 0.5 if mode == "never" else 10)

    return use


def all_gone(pids: list[int]) -> bool:
    """Whether none of the processes runs; a zombie of somebody else's child counts as gone."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        states = [_state(pid) for pid in pids]
        if all(state in ("", "Z") for state in states):
            return True
        time.sleep(0.02)
    return False


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def pids_in(folder: Path) -> list[int]:
    (file,) = folder.glob("demo-*/pids")
    return [int(word) for word in file.read_text().split()]


def test_a_ready_server_is_used_and_stopped(serve, tmp_path: Path) -> None:
    serve("ready")
    with demo.running_server(Path("c"), tmp_path) as address:
        assert address == "127.0.0.1:9"
        pids = pids_in(tmp_path)
        os.kill(pids[0], 0)
        began = time.monotonic()
    assert time.monotonic() - began < demo.STOP_TIMEOUT_S / 2  # in order, not by force
    assert all_gone(pids)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "logs_kept"), [(demo.DemoError("check failed"), 1), (KeyboardInterrupt(), 0)]
)
def test_a_failure_inside_stops_the_server_and_keeps_its_log(
    serve, tmp_path: Path, error: BaseException, logs_kept: int
) -> None:
    serve("ready")
    seen: list[int] = []

    def fail(address: str) -> None:
        seen.extend(pids_in(tmp_path))
        raise error

    with pytest.raises(type(error)), demo.running_server(Path("c"), tmp_path) as address:
        fail(address)
    assert len(seen) == 2
    assert all_gone(seen)
    assert len(list(tmp_path.iterdir())) == logs_kept


@pytest.mark.parametrize(
    ("mode", "words"), [("dies", "h3 serve ended with 7"), ("never", "was not ready in 0.5 s")]
)
def test_a_server_that_does_not_come_up_is_an_error(
    serve, tmp_path: Path, mode: str, words: str
) -> None:
    serve(mode)
    with (
        pytest.raises(demo.DemoError, match=words.replace(".", r"\.")),
        demo.running_server(Path("c"), tmp_path),
    ):
        raise AssertionError
    assert all_gone(pids_in(tmp_path))


def test_a_server_that_does_not_stop_is_killed_with_its_tritonserver(serve, tmp_path: Path) -> None:
    serve("stubborn")
    with demo.running_server(Path("c"), tmp_path):
        pids = pids_in(tmp_path)
    assert all_gone(pids)


def test_a_killed_demo_ends_the_input_of_its_server(tmp_path: Path) -> None:
    """`h3 serve --stop-with-stdin` stops then."""
    serve = (
        "import pathlib, sys\n"
        "folder = pathlib.Path(sys.argv[sys.argv.index('--run-dir') + 1]) / 'start'\n"
        "folder.mkdir(parents=True)\n"
        '(folder / \'server.json\').write_text(\'{"ready": true, "grpc_url": "127.0.0.1:9"}\')\n'
        "sys.stdin.read()\n"
        "(folder / 'ended').write_text(' '.join(sys.argv))\n"
    )
    script = (
        "import pathlib, sys, time\nfrom h3_client import demo\n"
        f"demo.SERVE = (sys.executable, '-c', {serve!r})\n"
        f"with demo.running_server(pathlib.Path('c'), pathlib.Path({str(tmp_path)!r})):\n"
        "    print('ready', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.kill()
    deadline = time.monotonic() + 5
    words = ""
    while "--stop-with-stdin" not in words:
        assert time.monotonic() < deadline, words
        time.sleep(0.02)
        words = "".join(file.read_text() for file in tmp_path.glob("*/start/ended"))


def test_the_whole_demo_reports_failure_and_leaves_nothing(serve, tmp_path: Path, capfd) -> None:
    serve("ready")
    words = ["--checkpoint", "c", "--output", str(tmp_path / "o.mp4")]
    assert demo.main([*words, "--run-dir", str(tmp_path / "run")]) == 1
    assert "demo: h3 generate failed" in capfd.readouterr().err
    assert all_gone(pids_in(tmp_path / "run"))
