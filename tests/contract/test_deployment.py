"""Dockerfile, docker-compose.yml, README and Makefile against the code they speak of."""

import argparse
import importlib.util
import json
import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import yaml

from minimax_h3.core.config import StageConfig
from minimax_h3.serve import command
from minimax_h3.serve.launch import server_flags
from minimax_h3.serve.settings import ServeSettings

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", "")


def docker_lines(word: str) -> list[str]:
    pattern = re.compile(rf"^{word}\s+(.*)$", re.MULTILINE)
    return [match.strip() for match in pattern.findall(DOCKERFILE)]


def settings_of(words: list[str]) -> ServeSettings:
    """The settings of a container's command; an unknown flag ends the test."""
    assert words[:2] == ["h3", "serve"]
    parser = argparse.ArgumentParser(exit_on_error=False)
    command.add_arguments(parser)
    return command.settings_of(parser.parse_args(words[2:]))


def makefile_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text()
    return set(re.findall(r"^([a-z][a-z0-9-]*):", text, re.MULTILINE))


def readme_code() -> str:
    blocks = re.findall(r"```(?:bash|sh)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return "\n".join(blocks)


@pytest.mark.parametrize("name", SERVICES)
def test_the_containers_command_is_a_plain_start_with_other_paths(name: str) -> None:
    settings = settings_of(SERVICES[name]["command"])
    device = "cuda:0" if name == "gpu" else name
    container = ServeSettings(
        stage=StageConfig(checkpoint_dir="/checkpoint", device=device),
        model_repository=Path("/opt/minimax-h3/model_repository"),
        run_dir=Path("/var/lib/minimax-h3"),
        tritonserver=Path("/opt/tritonserver/bin/tritonserver"),
        host="0.0.0.0",
    )
    assert settings == container
    flags = set(server_flags(settings, Path("/r"), "p"))
    plain = set(server_flags(ServeSettings(), Path("/r"), "p"))
    assert flags ^ plain == {
        f"--{service}-address={host}"
        for service in ("http", "grpc", "metrics")
        for host in ("127.0.0.1", "0.0.0.0")
    }


def test_the_images_command_is_the_services_without_a_device() -> None:
    (words,) = docker_lines("CMD")
    image = json.loads(words)
    for service in SERVICES.values():
        assert service["command"][:-1] == image
        assert service["command"][-1].startswith("--device=")


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_published_on_loopback_only(name: str) -> None:
    settings = settings_of(SERVICES[name]["command"])
    published = [mapping.rsplit(":", 2) for mapping in SERVICES[name]["ports"]]
    assert {host for host, _, _ in published} == {"127.0.0.1"}
    ports = {settings.http_port, settings.grpc_port, settings.metrics_port}
    assert {int(inside) for _, _, inside in published} == ports
    (exposed,) = docker_lines("EXPOSE")
    assert {int(port) for port in exposed.split()} == ports


@pytest.mark.parametrize("name", SERVICES)
def test_paths_exist(name: str) -> None:
    service = SERVICES[name]
    assert (ROOT / service["build"] / "Dockerfile").is_file()
    (volume,) = service["volumes"]
    variable, default, target, mode = re.fullmatch(r"\$\{(\w+):-(.+)\}:(.+):(\w+)", volume).groups()
    assert variable in (ROOT / "docker-compose.yml").read_text().split("x-server")[0]
    assert "TINY := " + default.removeprefix("./") in (ROOT / "Makefile").read_text()
    assert (target, mode) == (str(settings_of(service["command"]).checkpoint), "ro")


def test_what_the_image_copies_exists_and_holds_every_package() -> None:
    copied = [source for line in docker_lines("COPY") for source in line.split()[:-1]]
    for source in copied:
        assert (ROOT / source).exists(), source
    folders = re.findall(r'^\w+ = "([\w/]+)"$', _section("tool.setuptools.package-dir"), re.M)
    assert folders
    for folder in folders:
        assert folder.split("/")[0] in copied
    assert "model_repository" in copied


def test_the_image_does_not_run_as_root() -> None:
    users = docker_lines("USER")
    assert users[-1] not in ("root", "0")
    (uid,) = re.findall(r"useradd .*--uid (\d+)", DOCKERFILE)
    assert {service["user"] for service in SERVICES.values()} == {uid}


@pytest.mark.parametrize("name", SERVICES)
def test_shared_memory_and_stop_time(name: str) -> None:
    assert SERVICES[name]["shm_size"] == "8g"
    grace_s = int(SERVICES[name]["stop_grace_period"].removesuffix("s"))
    assert grace_s > settings_of(SERVICES[name]["command"]).exit_timeout_s


@pytest.mark.parametrize("name", SERVICES)
def test_the_health_check_asks_a_model(name: str) -> None:
    kind, program, flag, code = SERVICES[name]["healthcheck"]["test"]
    assert (kind, program, flag) == ("CMD", "python3", "-c")
    match = re.fullmatch(r"from ([\w.]+) import (\w+); \2\(\)\.ping\(\)", code)
    module = importlib.import_module(match[1])
    assert callable(getattr(module, match[2]).ping)


def test_only_the_gpu_service_asks_for_a_gpu() -> None:
    assert SERVICES["gpu"]["profiles"] == ["gpu"]
    assert SERVICES["cpu"]["profiles"] == ["cpu"]
    (device,) = SERVICES["gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert "deploy" not in SERVICES["cpu"]


def test_make_targets_of_the_readme_exist() -> None:
    named = set(re.findall(r"\bmake ([a-z][a-z-]*)", readme_code()))
    assert {"demo", "test"} <= named
    assert named <= makefile_targets()


def test_h3_commands_of_the_readme_exist() -> None:
    named = set(re.findall(r"\bh3 ([a-z]+)", readme_code()))
    assert named
    assert named <= {point.name for point in entry_points(group="h3.commands")}


def test_serve_flags_of_the_readme_exist() -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    starts = re.findall(r"h3 serve([^\n|&`]*)", (ROOT / "README.md").read_text())
    named = {flag for start in starts for flag in re.findall(r"--[a-z-]+", start)}
    assert named
    assert named <= set(parser.format_help().replace(",", " ").split())


def test_modules_that_make_runs_exist() -> None:
    modules = re.findall(r"\$\(PY\) -m ([\w.]+)", (ROOT / "Makefile").read_text())
    assert "minimax_h3.triton_io.render" in modules
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []


def _section(name: str) -> str:
    text = (ROOT / "pyproject.toml").read_text()
    return text.split(f"[{name}]\n")[1].split("\n[")[0]
