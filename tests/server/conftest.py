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
from supervised import HANGING_STEP, Supervised, supervised

from minimax_h3.core.config import StageConfig
from minimax_h3.serve.installation import wheel_folder
from minimax_h3.serve.layout import REPOSITORY
from minimax_h3.serve.server_process import ServerProcess
from minimax_h3.serve.settings import ServeSettings
from minimax_h3.serve.stubs import find_stubs, kill_all, wait_gone
from minimax_h3.triton_io.render import write_repository as write_configs

READY_TIMEOUT_S = 110.0  # below the test timeout, so that the reason is seen
# The models that read limits and step delays, and the fields of `StageConfig` that only they read.
LIMITED_MODELS = ("dit_fl2va", "denoiser", "minimax_h3_stream", "jobs")
LIMITS = frozenset({"running_jobs", "max_jobs", "stream_jobs", "client_jobs", "test_step_delay_ms"})


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


def limit(server: RunningServer, **limits: object) -> RunningServer:
    """Give a running server other limits; the models that read them start anew, without memory.

    They are loaded in 3 s, where the start of a server imports torch in five processes and the
    libraries of the encoders and autoencoders in four.

    Args:
        server: nobody uses it; processes of these models may be dead.
        limits: fields of `StageConfig` among `LIMITS`; the others become what they were at the
            server's start.
    """
    assert limits.keys() <= LIMITS, "other fields are read by models that take long to load"
    launch, api = server.process.launch, server.process.api
    stage = replace(launch.settings.stage, **limits)
    write_configs(launch.folder / REPOSITORY, stage, LIMITED_MODELS)
    for model in LIMITED_MODELS:
        old = server.stubs().get(model, [])
        kill_all(old)  # Triton would take a second for each
        api.unload(model)
        assert not wait_gone(old, 10), model
        api.load(model, READY_TIMEOUT_S)
    return server


@pytest.fixture(scope="session")
def shared_server(
    serve_settings: Callable[..., ServeSettings], tiny_checkpoint: Path
) -> Iterator[RunningServer]:
    """The server that module after module takes over; see `module_server`."""
    with running(serve_settings(tiny_checkpoint)) as ready:
        yield ready


@pytest.fixture(scope="module")
def module_server(shared_server: RunningServer) -> Callable[..., RunningServer]:
    """The shared server with limits of the module's own, by name; the last ones asked for hold.

    What a module does to the models of `LIMITED_MODELS` ends with it; one that hurts others takes
    `server_with`.
    """
    return lambda **limits: limit(shared_server, **limits)


@pytest.fixture(scope="module")
def server(module_server: Callable[..., RunningServer]) -> RunningServer:
    """The shared server with the limits that a plain start has."""
    return module_server()


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
    words = ("--test-step-delay-ms", "50", "--hang-timeout", "4")
    hanging = ("--test-hang-at-step", str(HANGING_STEP))
    with supervised(tiny_checkpoint, folder, *words, *hanging) as serving:
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
