"""Restarts and the end, with a script in the server's place."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from minimax_h3.serve.healing import HealingError
from minimax_h3.serve.server_api import ServerApiError
from minimax_h3.serve.service import Service
from minimax_h3.serve.settings import ServeSettings
from minimax_h3.serve.supervisor import Supervisor

Settings = Callable[..., ServeSettings]


def run(service: Service) -> None:
    """Run until it is asked to stop; a test that forgets to ask must not hang."""
    rescue = threading.Timer(60, service.server.stop_requested.set)
    rescue.start()
    try:
        service.run()
    finally:
        rescue.cancel()


def test_what_cannot_be_healed_is_started_again_on_the_same_ports(
    settings_with: Settings, fake_server: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    service = Service(settings_with(tritonserver=fake_server()), said.append)
    pids, urls = [], []

    def tick(self: Supervisor) -> None:
        pids.append(service.server.pid)
        urls.append(service.server.http_url)
        if len(pids) == 1:
            raise HealingError("muxer: no memory")
        service.server.stop_requested.set()

    monkeypatch.setattr(Supervisor, "tick", tick)
    run(service)
    assert pids[0] != pids[1]
    assert urls[0] == urls[1]
    assert "muxer: no memory" in said
    assert "the server is started again" in said
    assert sum(line.startswith("ready: ") for line in said) == 2


def test_a_stop_during_a_reload_starts_nothing(
    settings_with: Settings, fake_server: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    service = Service(settings_with(tritonserver=fake_server()), said.append)

    def tick(self: Supervisor) -> None:
        service.server.stop_requested.set()
        raise HealingError("muxer: the server is gone")

    monkeypatch.setattr(Supervisor, "tick", tick)
    run(service)
    assert "the server is started again" not in said


def test_an_unanswered_order_is_no_reason_to_end(
    settings_with: Settings, fake_server: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    service = Service(settings_with(tritonserver=fake_server()), said.append)
    looks: list[int] = []

    def tick(self: Supervisor) -> None:
        looks.append(1)
        if len(looks) == 1:
            raise ServerApiError("no answer")
        service.server.stop_requested.set()

    monkeypatch.setattr(Supervisor, "tick", tick)
    run(service)
    assert len(looks) == 2
    assert "no answer; looking again" in said
