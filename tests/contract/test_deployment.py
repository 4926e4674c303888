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
from minimax_h3.core.contracts import MODELS
from minimax_h3.core.metrics import HISTOGRAM, METRICS
from minimax_h3.serve import command, health_command
from minimax_h3.serve.launch import server_flags
from minimax_h3.serve.settings import ServeSettings

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVERS = {name: COMPOSE["services"][name] for name in ("cpu", "gpu")}
WATCHERS = {name: COMPOSE["services"][name] for name in ("prometheus", "grafana")}
DASHBOARD = json.loads((ROOT / "deploy/grafana/dashboards/minimax-h3.json").read_text())
# Of Triton itself, on a machine with a GPU; tests/server/test_metrics.py looks for the first ones.
TRITON_METRICS = {
    "nv_inference_request_success",
    "nv_inference_request_duration_us",
    "nv_inference_pending_request_count",
    "nv_gpu_memory_used_bytes",
    "nv_gpu_utilization",
}
# Of the Compose specification; a key that it does not know is an error of `docker compose`.
COMPOSE_KEYS = {
    *("build", "image", "init", "user", "security_opt", "cap_drop", "restart", "shm_size"),
    *("stop_grace_period", "ports", "volumes", "networks", "healthcheck", "profiles", "command"),
    *("deploy", "environment"),
}
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


@pytest.mark.parametrize("name", SERVERS)
def test_the_containers_command_is_a_plain_start_with_other_paths(name: str) -> None:
    settings = settings_of(SERVERS[name]["command"])
    device = "cuda:0" if name == "gpu" else name
    container = ServeSettings(
        stage=StageConfig(checkpoint_dir="/checkpoint", device=device),
        model_repository=Path("/opt/minimax-h3/model_repository"),
        run_dir=Path("/var/lib/minimax-h3"),
        tritonserver=Path("/opt/tritonserver/bin/tritonserver"),
        host="0.0.0.0",
        log_format="json",
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
    for service in SERVERS.values():
        assert service["command"][:-1] == image
        assert service["command"][-1].startswith("--device=")


@pytest.mark.parametrize("name", SERVERS)
def test_ports_are_published_on_loopback_only(name: str) -> None:
    settings = settings_of(SERVERS[name]["command"])
    published = [mapping.rsplit(":", 2) for mapping in SERVERS[name]["ports"]]
    assert {host for host, _, _ in published} == {"${H3_BIND:-127.0.0.1}"}
    ports = {settings.http_port, settings.grpc_port, settings.metrics_port}
    assert {int(inside) for _, _, inside in published} == ports
    (exposed,) = docker_lines("EXPOSE")
    assert {int(port) for port in exposed.split()} == ports


@pytest.mark.parametrize("name", SERVERS)
def test_paths_exist(name: str) -> None:
    service = SERVERS[name]
    assert (ROOT / service["build"] / "Dockerfile").is_file()
    (volume,) = service["volumes"]
    variable, default, target, mode = re.fullmatch(r"\$\{(\w+):-(.+)\}:(.+):(\w+)", volume).groups()
    assert variable in (ROOT / "docker-compose.yml").read_text().split("x-server")[0]
    assert (ROOT / default / "FL2VA" / "model_index.json").is_file()
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
    assert {service["user"] for service in SERVERS.values()} == {uid}


@pytest.mark.parametrize("name", SERVERS)
def test_shared_memory_and_stop_time(name: str) -> None:
    assert SERVERS[name]["shm_size"] == "8g"
    grace_s = int(SERVERS[name]["stop_grace_period"].removesuffix("s"))
    assert grace_s > settings_of(SERVERS[name]["command"]).exit_timeout_s


@pytest.mark.parametrize("name", SERVERS)
def test_the_health_check_is_a_command_of_ours(name: str) -> None:
    kind, *words = SERVERS[name]["healthcheck"]["test"]
    assert (kind, words) == ("CMD", ["h3", "health"])
    (image,) = docker_lines("HEALTHCHECK")
    assert json.loads(image.partition(" CMD ")[2]) == words
    parser = argparse.ArgumentParser(exit_on_error=False)
    health_command.add_arguments(parser)
    options = parser.parse_args(words[2:])
    settings = settings_of(SERVERS[name]["command"])
    assert options.url == f"127.0.0.1:{settings.http_port}"
    longest = options.timeout * len(MODELS)
    assert longest <= int(SERVERS[name]["healthcheck"]["timeout"].removesuffix("s"))


def test_only_the_gpu_service_asks_for_a_gpu() -> None:
    assert SERVERS["gpu"]["profiles"] == ["gpu"]
    assert SERVERS["cpu"]["profiles"] == ["cpu"]
    (device,) = SERVERS["gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert "deploy" not in SERVERS["cpu"]


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_services_keep_to_compose_and_run_without_rights(name: str) -> None:
    service = COMPOSE["services"][name]
    assert set(service) <= COMPOSE_KEYS
    assert service["user"] not in ("root", "0")
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    for mapping in service["ports"]:
        host, outside, inside = mapping.rsplit(":", 2)
        assert (host, outside) == ("${H3_BIND:-127.0.0.1}", inside)


@pytest.mark.parametrize("name", WATCHERS)
def test_watchers_come_with_both_profiles_and_mount_what_exists(name: str) -> None:
    service = WATCHERS[name]
    assert service["profiles"] == ["gpu", "cpu"]
    assert re.search(r":v?\d+\.\d+\.\d+$", service["image"])
    for volume in service["volumes"]:
        source, _, mode = volume.split(":")
        assert (ROOT / source).exists(), source
        assert mode == "ro"


def test_prometheus_scrapes_the_servers_metrics_port() -> None:
    scrape = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())["scrape_configs"]
    (target,) = scrape[0]["static_configs"][0]["targets"]
    alias, port = target.split(":")
    for service in SERVERS.values():
        assert alias in service["networks"]["default"]["aliases"]
        assert int(port) == settings_of(service["command"]).metrics_port


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    provisioning = ROOT / "deploy/grafana/provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    host, port = source["url"].removeprefix("http://").split(":")
    assert host in WATCHERS
    assert any(mapping.endswith(f":{port}") for mapping in WATCHERS[host]["ports"])
    (provider,) = yaml.safe_load((provisioning / "dashboards/minimax-h3.yml").read_text())[
        "providers"
    ]
    mounted = [volume.split(":")[1] for volume in WATCHERS["grafana"]["volumes"]]
    assert provider["options"]["path"] in mounted
    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]} == {source["uid"]}


def test_every_expression_of_the_dashboard_names_metrics_that_exist() -> None:
    expressions = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    named = {name for text in expressions for name in re.findall(r"\b(?:h3|nv)_\w+", text)}
    own = {name for name in named if name.startswith("h3_")}
    assert own == named_by_prometheus(own)
    assert {base_name(name) for name in own} == set(METRICS)
    assert named - own <= TRITON_METRICS
    for text in expressions:
        for labels in re.findall(r"by \(([^)]*)\)", text):
            family = base_name(re.search(r"h3_\w+", text)[0])
            words = {word.strip() for word in labels.split(",")} - {"le"}
            assert words <= set(METRICS[family].labels), text


def base_name(name: str) -> str:
    """The family of a series; a histogram has three."""
    return name if name in METRICS else re.sub(r"_(bucket|sum|count)$", "", name)


def named_by_prometheus(names: set[str]) -> set[str]:
    """Those of the names that the server exports."""
    series = {name for name, spec in METRICS.items() if spec.kind != HISTOGRAM}
    series |= {
        f"{name}_{end}"
        for name, spec in METRICS.items()
        if spec.kind == HISTOGRAM
        for end in ("bucket", "sum", "count")
    }
    return names & series


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
