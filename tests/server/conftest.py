"""Real servers on free loopback ports, started as `h3 serve` starts them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from running_server import READY_TIMEOUT_S, RunningServer, limit, running
from supervised import HANGING_STEP, Supervised, supervised

from minimax_h3.core.config import StageConfig
from minimax_h3.serve.installation import wheel_folder
from minimax_h3.serve.settings import ServeSettings


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
    small_canvas_checkpoint: Path,
    media_root: Path,
) -> Callable[[str], ServeSettings]:
    """Settings of a server of some task type; references are prepared small."""
    return lambda task_type: serve_settings(
        small_canvas_checkpoint,
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
