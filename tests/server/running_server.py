"""A tritonserver with our models: started, looked into, given other limits."""

import json
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from minimax_h3.serve.layout import REPOSITORY
from minimax_h3.serve.server_process import ServerProcess
from minimax_h3.serve.settings import ServeSettings
from minimax_h3.serve.stubs import find_stubs, kill_all, wait_gone
from minimax_h3.triton_io.render import write_repository

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
    write_repository(launch.folder / REPOSITORY, stage, LIMITED_MODELS)
    for model in LIMITED_MODELS:
        old = server.stubs().get(model, [])
        kill_all(old)  # Triton would take a second for each
        api.unload(model)
        assert not wait_gone(old, 10), model
        api.load(model, READY_TIMEOUT_S)
    return server
