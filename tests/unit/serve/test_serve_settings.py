"""What is refused before anything starts, and how it is named."""

import math
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from minimax_h3.core import compatibility
from minimax_h3.core.config import StageConfig
from minimax_h3.core.errors import CheckpointError, ConfigError
from minimax_h3.serve import settings as settings_module
from minimax_h3.serve.settings import ServeSettings, check_settings, checkout_repository

Settings = Callable[..., ServeSettings]


def test_zero_picks_free_and_different_ports(settings_with: Settings) -> None:
    checked = check_settings(settings_with())
    ports = {checked.http_port, checked.grpc_port, checked.metrics_port}
    assert len(ports) == 3
    assert min(ports) > 0


def test_only_this_machine_by_default() -> None:
    assert ServeSettings().host == "127.0.0.1"


@pytest.mark.parametrize("name", ["http_port", "grpc_port", "metrics_port"])
def test_a_taken_port_is_named(settings_with: Settings, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flag = name.replace("_", "-")
        message = f"{flag}: {port} cannot be used on 127.0.0.1: Address already in use"
        with pytest.raises(ConfigError, match=message):
            check_settings(settings_with(**{name: port}))


@pytest.mark.parametrize("host", ["nosuch.invalid", "192.0.2.1", "::1", "127.0.0.1.5"])
def test_a_host_that_is_not_here_is_named(settings_with: Settings, host: str) -> None:
    legal = "; legal: an IPv4 address of this machine, a name of one, or 0.0.0.0 for all"
    with pytest.raises(ConfigError, match=rf"^host: '{host}' cannot be used: .+{legal}$"):
        check_settings(settings_with(host=host))
    assert (
        check_settings(
            settings_with(host=host, http_port=1, grpc_port=2, metrics_port=3), starts=False
        ).host
        == host
    )


@pytest.mark.parametrize(
    ("first", "second"), [("http", "grpc"), ("http", "metrics"), ("grpc", "metrics")]
)
def test_the_same_port_twice_is_refused(settings_with: Settings, first: str, second: str) -> None:
    message = f"{second}-port: 8123 is not legal, {first}-port has it; legal: a port for each"
    with pytest.raises(ConfigError, match=message):
        settings_with(**{f"{first}_port": 8123, f"{second}_port": 8123})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"http_port": 65536}, "http-port: 65536 is not legal; legal: 0..65535"),
        ({"metrics_port": -1}, "metrics-port: -1 is not legal"),
        ({"log_level": "loud"}, "log-level: 'loud' is not legal; legal: one of error, warning"),
        ({"ready_timeout_s": 0}, "ready-timeout: 0 is not legal; legal: 0.1..86400"),
        ({"ready_timeout_s": math.inf}, "ready-timeout: inf is not legal"),
        ({"grace_s": math.nan}, "grace: nan is not legal; legal: 0..86400"),
        ({"hang_timeout_s": -1.0}, "hang-timeout: -1.0 is not legal"),
        ({"silence_timeout_s": 1e9}, "silence-timeout: 1000000000.0 is not legal"),
    ],
)
def test_values_outside_their_range(settings_with: Settings, changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_with(**changes)


def test_a_repository_without_a_model_is_refused(settings_with: Settings) -> None:
    settings = settings_with()
    shim = settings.model_repository / "muxer" / "1" / "model.py"
    shim.unlink()
    with pytest.raises(ConfigError, match=f"model-repository: {shim} is missing"):
        check_settings(settings)


def test_features_that_exclude_each_other_are_refused(
    settings_with: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = compatibility.Rule("dtype=bf16", "device=cpu", compatibility.REFUSED, "a reason")
    monkeypatch.setattr(compatibility, "RULES", (rule,))
    with pytest.raises(ConfigError, match="dtype=bf16: excludes device=cpu; a reason"):
        check_settings(settings_with(stage=StageConfig(dtype="bf16", device="cpu")))


def test_the_checkpoint_is_looked_at_before_the_start(
    settings_with: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_with()
    monkeypatch.undo()  # the real look
    with pytest.raises(CheckpointError, match=r"^checkpoint: .*no such folder; legal: a checkp"):
        check_settings(settings)
    settings.checkpoint.mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"^checkpoint: .*no checkpoint here; legal: "):
        check_settings(settings)


def test_a_relative_checkpoint_counts_from_a_models_folder(
    settings_with: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Path, str]] = []
    monkeypatch.setattr(settings_module, "identify", lambda *arguments: seen.append(arguments))
    checked = check_settings(settings_with(stage=StageConfig()))
    assert seen == [(tmp_path / "checkpoints" / "h3-tiny", "fl2va")]
    assert checked.stage.checkpoint_dir == str(tmp_path / "checkpoints" / "h3-tiny")


def test_the_checkouts_repository_is_the_default() -> None:
    assert ServeSettings().model_repository == checkout_repository()
    assert (checkout_repository() / "jobs" / "config.pbtxt").is_file()


@pytest.mark.parametrize(("host", "url_host"), [("0.0.0.0", "127.0.0.1"), ("10.1.2.3", "10.1.2.3")])
def test_where_a_local_client_finds_it(host: str, url_host: str) -> None:
    assert ServeSettings(host=host).url_host == url_host


def test_a_run_folder_with_a_space_is_refused(
    settings_with: Callable[..., ServeSettings], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"run-dir: .* without white space"):
        check_settings(settings_with(run_dir=tmp_path / "my runs"))
