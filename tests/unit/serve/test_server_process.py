"""Start, readiness, stop and what is left behind, with a script in the server's place."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from minimax_h3.core.contracts import models_of
from minimax_h3.core.errors import ConfigError
from minimax_h3.serve import server_process
from minimax_h3.serve.server_process import (
    ServerProcess,
    ServerStartError,
    ServerStoppedError,
)
from minimax_h3.serve.settings import ServeSettings
from minimax_h3.serve.stubs import wait_gone

Settings = Callable[..., ServeSettings]
FakeServer = Callable[..., Path]
# As in the server: a child of the same process group, which would outlive it.
CHILD = "child = subprocess.Popen(['sleep', '60']); print('child', child.pid, flush=True)"
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


def regions(prefix: str) -> list[Path]:
    return list(Path("/dev/shm").glob(f"{prefix}*"))


def runs(pid: int) -> bool:
    """Whether a process lives; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


def child_pid(log: Path) -> int:
    line = next(line for line in log.read_text().splitlines() if line.startswith("child"))
    return int(line.split()[1])


def test_it_is_ready_and_leaves_only_its_log(
    settings_with: Settings, fake_server: FakeServer
) -> None:
    said: list[str] = []
    with ServerProcess(settings_with(tritonserver=fake_server(CHILD)), said.append) as server:
        launch, pid = server.launch, server.pid
        facts = json.loads(launch.facts_file.read_text())
        assert facts["ready"] is True
        assert facts["pid"] == pid
        assert facts["http_url"] == server.http_url == f"127.0.0.1:{facts['http_port']}"
        assert facts["command"] == list(launch.command)
        assert regions(launch.shared_memory_prefix)
        child = child_pid(launch.log_file)
        assert runs(child)
    assert not runs(pid)
    assert not runs(child)
    assert regions(launch.shared_memory_prefix) == []
    assert list(launch.folder.iterdir()) == [launch.log_file]
    assert any(
        f"1 of {len(models_of('fl2va')) + 1} models loaded (+ jobs)" in line for line in said
    )


def test_a_proxy_of_the_environment_is_not_asked(
    settings_with: Settings, fake_server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody listens there
    with ServerProcess(settings_with(tritonserver=fake_server(), ready_timeout_s=5.0)) as server:
        assert server.poll() is None


@pytest.mark.parametrize(("enough", "warns"), [(2**60, True), (1, False)])
def test_little_shared_memory_is_said(
    settings_with: Settings,
    fake_server: FakeServer,
    monkeypatch: pytest.MonkeyPatch,
    enough: int,
    warns: bool,
) -> None:
    monkeypatch.setattr(server_process, "ENOUGH_SHARED_MEMORY", enough)
    said: list[str] = []
    with ServerProcess(settings_with(tritonserver=fake_server()), said.append):
        assert any(line.startswith("warning: /dev/shm has") for line in said) is warns


def test_stop_is_harmless_twice_and_before_the_start(
    settings_with: Settings, fake_server: FakeServer
) -> None:
    server = ServerProcess(settings_with(tritonserver=fake_server()))
    server.stop()
    server.start()
    server.stop()
    server.stop()


def test_a_start_that_dies_says_why_and_not_more(
    settings_with: Settings, fake_server: FakeServer
) -> None:
    behaviour = (
        "print('E1129 15:30:32.39 6 m.cc:6] \"failed to load \\'jobs\\' version 1: Internal: "
        "CheckpointError: w is missing\"', flush=True); print('I noise', flush=True); sys.exit(1)"
    )
    server = ServerProcess(settings_with(tritonserver=fake_server(behaviour)))
    with pytest.raises(ServerStartError) as failure, server:
        pass
    message = str(failure.value)
    assert "tritonserver exited with 1" in message
    assert "jobs: CheckpointError: w is missing" in message
    assert "noise" not in message
    log = Path(message.splitlines()[-1].split(": ")[1])
    assert log.is_file()
    assert list(log.parent.iterdir()) == [log]


def test_a_start_that_hangs_is_ended(settings_with: Settings, fake_server: FakeServer) -> None:
    slow = settings_with(tritonserver=fake_server("time.sleep(60)"), ready_timeout_s=0.5)
    server = ServerProcess(slow)
    with pytest.raises(ServerStartError, match=r"not ready after 0\.5 s; still loading: audio"):
        server.__enter__()
    with pytest.raises(AssertionError):
        server.launch  # noqa: B018  # stopped: there is no launch any more


def test_a_stop_during_the_start(settings_with: Settings, fake_server: FakeServer) -> None:
    server = ServerProcess(settings_with(tritonserver=fake_server("time.sleep(60)")))
    server.stop_requested.set()
    with pytest.raises(ServerStoppedError), server:
        pass


def test_a_server_that_ignores_the_signal_is_killed(
    settings_with: Settings, fake_server: FakeServer
) -> None:
    said: list[str] = []
    with ServerProcess(settings_with(tritonserver=fake_server(DEAF)), said.append) as server:
        pid, prefix = server.pid, server.launch.shared_memory_prefix
    assert not runs(pid)
    assert regions(prefix) == []
    assert said[-1] == "tritonserver still unloads its models and is ended"


def test_stubs_that_outlive_a_dead_server_are_ended_and_waited_for(
    settings_with: Settings, fake_server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited_for: list[int] = []

    def wait(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
        waited_for.extend(process.pid for process in processes)
        return wait_gone(processes, seconds)

    monkeypatch.setattr(server_process, "wait_gone", wait)
    with ServerProcess(settings_with(tritonserver=fake_server(CHILD))) as server:
        child = child_pid(server.launch.log_file)
        os.kill(server.pid, 9)
        while server.poll() is None:
            time.sleep(0.01)
        assert server.poll() == -9
        assert runs(child)
    assert child in waited_for
    assert not runs(child)


def test_nothing_is_started_when_a_setting_is_wrong(
    settings_with: Settings, fake_server: FakeServer
) -> None:
    settings = settings_with(tritonserver=fake_server())
    (settings.model_repository / "jobs" / "1" / "model.py").unlink()
    with pytest.raises(ConfigError), ServerProcess(settings):
        pass
    assert not settings.run_dir.exists()
