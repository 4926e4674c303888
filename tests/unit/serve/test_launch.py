"""The files and the command line of one start."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from minimax_h3.core.config import StageConfig
from minimax_h3.core.contracts import (
    ENSEMBLE,
    JSON_LOG_VARIABLE,
    MODELS,
    TRACE_VARIABLE,
    WORKER_TOKEN_VARIABLE,
    models_of,
)
from minimax_h3.core.errors import BackendUnavailableError
from minimax_h3.serve import installation
from minimax_h3.serve.launch import STUB_SHELL, prepare_launch, server_flags
from minimax_h3.serve.settings import ServeSettings, check_settings

Settings = Callable[..., ServeSettings]
INHERITED = {"PATH": "/usr/bin", "LD_LIBRARY_PATH": "/opt/lib"}


def parameters(folder: Path, model: str) -> dict[str, str]:
    text = (folder / "model_repository" / model / "config.pbtxt").read_text()
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    return {name: value.string_value for name, value in config.parameters.items()}


def test_the_repository_of_a_start_carries_its_parameters(
    settings_with: Settings, fake_server: Callable[[], Path]
) -> None:
    stage = StageConfig(checkpoint_dir="/weights", max_jobs=5, device="cpu")
    launch = prepare_launch(settings_with(stage=stage, tritonserver=fake_server()), INHERITED)
    assert not launch.folder.exists()
    launch.lay_out()
    for model in models_of("fl2va"):
        results_dir = str(launch.folder / "results")
        assert parameters(launch.folder, model) == stage.parameters() | {"results_dir": results_dir}
        assert (launch.folder / "model_repository" / model / "1" / "model.py").is_file()
    assert (launch.folder / "model_repository" / ENSEMBLE.name / "1").is_dir()


@pytest.mark.parametrize(
    ("task_type", "left_out"),
    [("fl2va", {"dit_ref2va"}), ("ref2va", {"dit_fl2va"}), ("combined", set())],
)
def test_a_dit_that_the_task_type_does_not_need_is_left_out(
    settings_with: Settings, fake_server: Callable[[], Path], task_type: str, left_out: set[str]
) -> None:
    stage = StageConfig(checkpoint_dir="/weights", task_type=task_type)
    launch = prepare_launch(settings_with(stage=stage, tritonserver=fake_server()), INHERITED)
    launch.lay_out()
    folders = {folder.name for folder in (launch.folder / "model_repository").iterdir()}
    assert folders == {*MODELS, ENSEMBLE.name} - left_out
    assert folders == {*models_of(task_type), ENSEMBLE.name}


def test_each_start_has_its_own_folder_and_shared_memory(
    settings_with: Settings, fake_server: Callable[[], Path]
) -> None:
    settings = settings_with(tritonserver=fake_server())
    first, second = (prepare_launch(settings, INHERITED) for _ in range(2))
    assert first.folder != second.folder
    assert first.shared_memory_prefix != second.shared_memory_prefix
    assert not second.shared_memory_prefix.startswith(first.shared_memory_prefix)


def test_python_caches_are_not_copied(
    settings_with: Settings, fake_server: Callable[[], Path]
) -> None:
    settings = settings_with(tritonserver=fake_server())
    (settings.model_repository / "jobs" / "1" / "__pycache__").mkdir()
    launch = prepare_launch(settings, INHERITED)
    launch.lay_out()
    assert list((launch.folder / "model_repository" / "jobs" / "1").iterdir()) == [
        launch.folder / "model_repository" / "jobs" / "1" / "model.py"
    ]


def test_the_flags_say_what_was_asked(settings_with: Settings) -> None:
    settings = settings_with(
        http_port=1, grpc_port=2, metrics_port=3, exit_timeout_s=4, ready_timeout_s=5, host="::1"
    )
    flags = server_flags(settings, Path("/r"), "h3_x_")
    assert {
        "--model-repository=/r",
        "--http-address=::1",
        "--grpc-address=::1",
        "--metrics-address=::1",
        "--http-port=1",
        "--grpc-port=2",
        "--metrics-port=3",
        "--exit-timeout-secs=4",
        "--backend-config=python,stub-timeout-seconds=5",
        "--backend-config=python,shm-region-prefix-name=h3_x_",
        "--model-control-mode=explicit",
        "--load-model=*",
        "--strict-readiness=true",
        "--exit-on-error=true",
        "--disable-auto-complete-config",
    } <= set(flags)


@pytest.mark.parametrize(
    ("level", "flags"),
    [
        ("error", {"--log-info=false", "--log-warning=false"}),
        ("warning", {"--log-info=false"}),
        ("info", set()),
        ("verbose", {"--log-verbose=1"}),
    ],
)
def test_log_levels(settings_with: Settings, level: str, flags: set[str]) -> None:
    given = server_flags(settings_with(log_level=level), Path("/r"), "p")
    assert {flag for flag in given if flag.startswith("--log-")} == flags


def test_a_named_server_keeps_its_own_backends_and_libraries(
    settings_with: Settings, fake_server: Callable[[], Path]
) -> None:
    script = fake_server()
    launch = prepare_launch(settings_with(tritonserver=script), INHERITED)
    assert launch.command[0] == str(script)
    assert not any(flag.startswith("--backend-directory") for flag in launch.command)
    # The models must run on the Python that this package is installed in.
    environment = dict(launch.environment)
    assert len(environment.pop(WORKER_TOKEN_VARIABLE)) == 32
    assert environment == {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin",
        "GOMP_SPINCOUNT": "3000",
        "BASH_ENV": str(STUB_SHELL),
    }
    assert STUB_SHELL.is_file()


def test_a_named_server_that_is_not_there(settings_with: Settings) -> None:
    with pytest.raises(BackendUnavailableError, match="tritonserver: /nowhere is not an exec"):
        prepare_launch(settings_with(tritonserver=Path("/nowhere")), INHERITED)


def fake_wheel(folder: Path, *stubs: str) -> Path:
    wheel = folder / "pytriton" / "tritonserver"
    for file in ("bin/tritonserver", *(f"backends/python/{x}" for x in installation.BACKEND_FILES)):
        (wheel / file).parent.mkdir(parents=True, exist_ok=True)
        (wheel / file).write_text(file)
    for version in stubs:
        stub = wheel / "python_backend_stubs" / version / installation.STUB
        stub.parent.mkdir(parents=True)
        stub.write_text(version)
    return wheel


def test_the_wheels_backend_gets_the_stub_of_this_python(
    settings_with: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    wheel = fake_wheel(tmp_path, "3.8", version)
    monkeypatch.setattr(installation, "wheel_folder", lambda: wheel)
    launch = prepare_launch(settings_with(), INHERITED)
    launch.lay_out()
    backend = launch.folder / "backends" / "python"
    assert (backend / installation.STUB).read_text() == version
    assert {file.name for file in backend.iterdir()} == {
        *installation.BACKEND_FILES,
        installation.STUB,
    }
    assert f"--backend-directory={launch.folder / 'backends'}" in launch.command
    libraries = launch.environment["LD_LIBRARY_PATH"].split(":")
    assert libraries[0] == str(tmp_path / "nvidia_pytriton.libs")
    assert libraries[-1] == "/opt/lib"


def test_a_wheel_without_a_stub_for_this_python(
    settings_with: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = fake_wheel(tmp_path, "2.7", "3.0")
    monkeypatch.setattr(installation, "wheel_folder", lambda: wheel)
    with pytest.raises(BackendUnavailableError, match=r"no stub for Python .*legal: 2\.7, 3\.0"):
        prepare_launch(settings_with(), INHERITED)


def test_without_the_wheel_the_message_says_what_to_do(
    settings_with: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "wheel_folder", lambda: None)
    with pytest.raises(BackendUnavailableError, match=r"minimax-h3-triton\[server\].*--tritons"):
        prepare_launch(settings_with(), INHERITED)


def test_the_shell_text_is_the_same_start(
    settings_with: Settings, tmp_path: Path, fake_server: Callable[[], Path]
) -> None:
    settings = settings_with(tritonserver=fake_server(), run_dir=tmp_path / "a-run's-folder")
    launch = prepare_launch(check_settings(settings), INHERITED)
    *exports, files, stack, command = launch.shell_text().replace("\\\n", "").split("\n")
    assert shlex.split(command) == ["exec", *launch.command]
    assert stack.startswith("ulimit -s 524288 ")  # as in the README
    assert [shlex.split(line)[1].split("=", 1) for line in exports] == [
        list(item) for item in launch.environment.items()
    ]
    json.dumps(launch.command)
    assert not launch.folder.exists()
    subprocess.run(["bash", "-c", files], check=True)
    for model in models_of("fl2va"):
        assert parameters(launch.folder, model) == launch.settings.stage.parameters()


def test_trace_flags_and_the_json_log(
    settings_with: Settings, fake_server: Callable[[], Path]
) -> None:
    url = "http://127.0.0.1:4318/v1/traces"
    plain = prepare_launch(settings_with(tritonserver=fake_server()), INHERITED)
    assert not {TRACE_VARIABLE, JSON_LOG_VARIABLE} & plain.environment.keys()
    settings = settings_with(tritonserver=fake_server(), otlp_url=url, log_format="json")
    launch = prepare_launch(settings, INHERITED)
    assert f"--trace-config=opentelemetry,url={url}" in launch.command
    assert launch.environment[TRACE_VARIABLE]
    assert launch.environment[JSON_LOG_VARIABLE] == str(launch.folder / "models.jsonl")
