"""Real servers on free loopback ports, started as `h3 serve` starts them."""

import json
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest
from fakes.small_references import write_repository
from supervised import Supervised, supervised

from minimax_h3.core.config import StageConfig
from minimax_h3.serve.installation import wheel_folder
from minimax_h3.serve.server_process import ServerProcess
from minimax_h3.serve.settings import ServeSettings
from minimax_h3.serve.stubs import find_stubs

READY_TIMEOUT_S = 110.0  # below the test timeout, so that the reason is seen


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that is ready; `fresh_bytes` is what its models held before the first request."""

    process: ServerProcess
    fresh_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def http_url(self) -> str:
        return self.process.http_url

    @property
    def grpc_url(self) -> str:
        return self.process.grpc_url

    @property
    def log(self) -> Path:
        return self.process.launch.log_file

    def stubs(self) -> dict[str, list[psutil.Process]]:
        """The live processes of each model."""
        return find_stubs(self.process.pid)

    def stub_pids(self, model: str) -> list[int]:
        """Process ids of a model's instances."""
        return [stub.pid for stub in self.stubs().get(model, [])]

    def resident_bytes(self) -> dict[str, int]:
        """Memory that the processes of each model have for themselves."""
        return {
            name: sum(stub.memory_full_info().uss for stub in stubs)
            for name, stubs in self.stubs().items()
        }

    def inference_count(self, model: str) -> int:
        """Requests that reached a model, whatever became of them."""
        url = f"http://{self.http_url}/v2/models/{model}/stats"
        with urllib.request.urlopen(url) as answer:
            (stats,) = json.load(answer)["model_stats"]
        return sum(int(stats["inference_stats"][key]["count"]) for key in ("success", "fail"))


@contextmanager
def running(settings: ServeSettings, *, in_haste: bool = False) -> Iterator[RunningServer]:
    """Serve; `in_haste` ends the server by force instead of waiting for every model to unload."""
    with ServerProcess(settings) as process:
        yield RunningServer(process)
        if in_haste:
            process.kill()


@pytest.fixture(scope="session")
def serve_settings(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ServeSettings]:
    """Settings for a server on free ports; fields of `StageConfig` by name."""
    if wheel_folder() is None:
        pytest.skip(reason="no tritonserver: the nvidia-pytriton wheel is not installed")
    run_dir = tmp_path_factory.mktemp("run")

    def build(checkpoint: Path, repository: Path | None = None, **stage: object) -> ServeSettings:
        values = {"checkpoint_dir": str(checkpoint), "device": "cpu"} | stage
        others = {} if repository is None else {"model_repository": repository}
        return ServeSettings(
            stage=StageConfig(**values),
            run_dir=run_dir,
            http_port=0,
            grpc_port=0,
            metrics_port=0,
            ready_timeout_s=READY_TIMEOUT_S,
            preflight="warn",  # other servers hold memory; the limits stay as configured
            fits_rows=False,
            **others,
        )

    return build


@pytest.fixture(scope="session")
def server(
    serve_settings: Callable[..., ServeSettings], tiny_checkpoint: Path
) -> Iterator[RunningServer]:
    """The server that most tests share; a test that hurts it takes `server_with`."""
    with running(serve_settings(tiny_checkpoint)) as ready:
        yield ready


@pytest.fixture(scope="session")
def media_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that requests to `combined_server` may name files of."""
    return tmp_path_factory.mktemp("media")


@pytest.fixture(scope="session")
def combined_settings(
    serve_settings: Callable[..., ServeSettings],
    tiny_checkpoint: Path,
    tmp_path_factory: pytest.TempPathFactory,
    media_root: Path,
) -> Callable[[str], ServeSettings]:
    """Settings of a server of some task type; references are prepared small."""
    repository = write_repository(tmp_path_factory.mktemp("small"))
    return lambda task_type: serve_settings(
        tiny_checkpoint,
        repository,
        task_type=task_type,
        media_root=str(media_root),
        running_jobs=3,
        max_jobs=4,
    )


@pytest.fixture(scope="session")
def combined_server(combined_settings: Callable[[str], ServeSettings]) -> Iterator[RunningServer]:
    """A server with both DiTs."""
    with running(combined_settings("combined"), in_haste=True) as ready:
        yield replace(ready, fresh_bytes=ready.resident_bytes())


@pytest.fixture(scope="session")
def supervised_server(
    tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Supervised]:
    """`h3 serve` as a process of its own; it heals what tests hurt."""
    folder = tmp_path_factory.mktemp("supervised")
    with supervised(tiny_checkpoint, folder, "--test-step-delay-ms", "50") as serving:
        yield serving


@pytest.fixture
def start_server() -> Iterator[Callable[[ServeSettings], RunningServer]]:
    """Starts servers of the test's own, which end by force when it is over."""
    with ExitStack() as servers:
        yield lambda settings: servers.enter_context(running(settings, in_haste=True))


@pytest.fixture
def server_with(
    start_server: Callable[[ServeSettings], RunningServer],
    serve_settings: Callable[..., ServeSettings],
    tiny_checkpoint: Path,
) -> Callable[..., RunningServer]:
    """Starts a server of the test's own, with fields of `StageConfig` by name."""
    return lambda **stage: start_server(serve_settings(tiny_checkpoint, **stage))


@pytest.fixture(scope="module")
def module_server(
    serve_settings: Callable[..., ServeSettings], tiny_checkpoint: Path
) -> Iterator[Callable[..., RunningServer]]:
    """Starts servers that live as long as their module, one at a time; `StageConfig` fields."""
    with ExitStack() as servers:

        def start(**stage: object) -> RunningServer:
            servers.close()  # few cores: a server that nobody asks is in the way
            settings = serve_settings(tiny_checkpoint, **stage)
            return servers.enter_context(running(settings, in_haste=True))

        yield start
