"""A running tritonserver: start, wait until ready, stop without leftovers."""

import json
import os
import resource
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import BinaryIO

from minimax_h3.core.contracts import ENSEMBLE, WORKER_TOKEN_VARIABLE, models_of
from minimax_h3.core.errors import H3Error
from minimax_h3.serve import shared_memory
from minimax_h3.serve.guardian import Guardian
from minimax_h3.serve.launch import STACK_BYTES, Launch, prepare_launch
from minimax_h3.serve.preflight import look_ahead
from minimax_h3.serve.residency import ResidentPlan
from minimax_h3.serve.server_api import ServerApi
from minimax_h3.serve.server_log import error_lines, loaded_models
from minimax_h3.serve.settings import ServeSettings, check_settings
from minimax_h3.serve.stubs import members, wait_gone

POLL_S = 0.2
GONE_S = 10.0  # a killed process of many gigabytes takes a moment to be gone
# Tensors cross processes there; a full-size clip with its frames is several hundred MB, held twice.
ENOUGH_SHARED_MEMORY = 2 * 2**30  # bytes


class ServerStartError(H3Error):
    """The server did not become ready; the message has the reasons from its log."""

    kind = "server_start"


class ServerStoppedError(H3Error):
    """The server was asked to stop before it was ready."""

    kind = "server_stopped"


class ServerProcess:
    """One tritonserver with its models.

    As a context manager it starts, waits until ready, and stops.

    Args:
        settings: what to start.
        announce: is told each line of progress.
    """

    def __init__(
        self, settings: ServeSettings, announce: Callable[[str], None] = lambda line: None
    ) -> None:
        self._wanted = settings
        self._announce = announce
        self._launch: Launch | None = None
        self._plan: ResidentPlan | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: BinaryIO | None = None
        self._guardian: Guardian | None = None
        self.stop_requested = threading.Event()
        self.kill_requested = threading.Event()

    def __enter__(self) -> "ServerProcess":
        """Start and wait until ready; a failed start leaves nothing running."""
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop."""
        self.stop()

    @property
    def launch(self) -> Launch:
        """How the server was started."""
        assert self._launch is not None
        return self._launch

    @property
    def pid(self) -> int:
        """Process id of tritonserver, which is also its process group."""
        assert self._process is not None
        return self._process.pid

    @property
    def api(self) -> ServerApi:
        """Questions and orders to the running server, trusted by its models."""
        return ServerApi(self.http_url, self.launch.environment[WORKER_TOKEN_VARIABLE])

    @property
    def http_url(self) -> str:
        """`host:port` for HTTP clients."""
        settings = self.launch.settings
        return f"{settings.url_host}:{settings.http_port}"

    @property
    def grpc_url(self) -> str:
        """`host:port` for gRPC clients."""
        settings = self.launch.settings
        return f"{settings.url_host}:{settings.grpc_port}"

    @property
    def metrics_url(self) -> str:
        """`host:port` of the Prometheus metrics."""
        settings = self.launch.settings
        return f"{settings.url_host}:{settings.metrics_port}"

    def start(self) -> None:
        """Check the settings, lay out the files and start the server.

        Raises:
            H3Error: a setting, the checkpoint or the installation is wrong; nothing was started.
        """
        self._launch = prepare_launch(self._checked(), os.environ)
        self._launch.lay_out()
        self._claim_shared_memory(self._launch.run_id)
        log_file = self._launch.log_file
        self._guardian = Guardian(self._launch.run_id, log_file, self._announce)
        # A group of its own: Ctrl-C reaches only us, and stubs can be ended with the server.
        with log_file.open("ab") as log, _large_stack():
            self._process = subprocess.Popen(  # our own command line
                self._launch.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._launch.environment},
                pass_fds=(self._lock.fileno(),) if self._lock else (),
                start_new_session=True,
            )
        self._guardian.watch_over(self.pid)
        self._write_facts(ready=False)
        self._announce(f"tritonserver runs as process {self.pid}, log {self._launch.log_file}")

    def _checked(self) -> ServeSettings:
        """The settings to start with; the machine is judged once, when nothing of ours runs yet."""
        settings = check_settings(self._wanted)
        if self._plan is None:
            if settings.stage.media_root:
                self._announce(f"requests may name files below {settings.stage.media_root}")
            found = look_ahead(settings)
            for line in found.lines():
                self._announce(line)
            self._plan, settings = found.plan, found.settings
        rows = self._plan.max_packed_rows
        return replace(settings, stage=replace(settings.stage, max_packed_rows=rows))

    def wait_ready(self) -> None:
        """Wait until every model serves.

        Raises:
            ServerStartError: the server exited, or took longer than the ready timeout.
            ServerStoppedError: `stop_requested` was set meanwhile.
        """
        deadline = time.monotonic() + self.launch.settings.ready_timeout_s
        expected = {*models_of(self.launch.settings.stage.task_type), ENSEMBLE.name}
        announced: list[str] = []
        while True:
            announced = self._announce_models(announced, len(expected))
            if self.poll() is not None:
                raise ServerStartError(self._reasons(f"tritonserver exited with {self.poll()}"))
            if self.api.is_ready():
                break
            if time.monotonic() > deadline:
                missing = ", ".join(sorted(expected - set(announced)))
                timeout_s = self.launch.settings.ready_timeout_s
                raise ServerStartError(
                    self._reasons(f"not ready after {timeout_s:g} s; still loading: {missing}")
                )
            if self.stop_requested.wait(POLL_S):
                raise ServerStoppedError("stopped before the server was ready")
        self._write_facts(ready=True)

    def poll(self) -> int | None:
        """Exit status of the server, or None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def reasons(self) -> list[str]:
        """What the log says about why the server died."""
        return error_lines(self._log_text())

    def kill(self) -> None:
        """End the server and its stubs at once."""
        self.kill_requested.set()
        if self._process is not None:
            self._signal_group(signal.SIGKILL)

    def restart(self) -> None:
        """End the server at once and start it again on the same ports.

        Raises:
            ServerStartError, ServerStoppedError: as `wait_ready`.
        """
        settings = self.launch.settings
        self._wanted = replace(
            self._wanted,
            http_port=settings.http_port,
            grpc_port=settings.grpc_port,
            metrics_port=settings.metrics_port,
        )
        self._signal_group(signal.SIGKILL)
        self.stop()
        self.start()
        self.wait_ready()

    def stop(self) -> None:
        """Stop the server, by force when it takes too long, and remove what it leaves behind.

        Server 2.51 unloads its models one after another, 1.2 s each, and so is often ended by
        force; a model without a request in flight loses nothing by that.
        """
        if self._launch is None:
            return
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)
                try:
                    self._process.wait(self._launch.settings.exit_timeout_s)
                except subprocess.TimeoutExpired:
                    self._announce("tritonserver still unloads its models and is ended")
            family = members(self._process.pid)
            self._signal_group(signal.SIGKILL)  # the server, or stubs that outlived it
            self._process.wait()
            wait_gone(family, GONE_S)
        self._launch.remove_shared_memory()
        self._launch.remove_files()
        self._launch = None
        if self._lock is not None:
            self._lock.close()
        if self._guardian is not None:
            self._guardian.dismiss()
            self._guardian = None

    def _claim_shared_memory(self, run_id: str) -> None:
        for abandoned in shared_memory.remove_abandoned():
            self._announce(f"removed the shared memory of start {abandoned}, which was killed")
        folder = shared_memory.SHARED_MEMORY
        free = shutil.disk_usage(folder).free
        if free < ENOUGH_SHARED_MEMORY:
            self._announce(
                f"warning: {folder} has {free / 2**20:.0f} MiB free; a large request fails "
                f"below {ENOUGH_SHARED_MEMORY / 2**20:.0f} MiB (Docker: --shm-size=8g)"
            )
        self._lock = shared_memory.hold(run_id)

    def _signal_group(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return  # everything has ended by itself

    def _announce_models(self, announced: list[str], expected: int) -> list[str]:
        loaded = loaded_models(self._log_text())
        fresh = loaded[len(announced) :]
        if fresh:
            self._announce(f"{len(loaded)} of {expected} models loaded (+ {', '.join(fresh)})")
        return loaded

    def _log_text(self) -> str:
        return self.launch.log_file.read_text(encoding="utf-8", errors="replace")

    def _reasons(self, what: str) -> str:
        lines = self.reasons() or ["the log names no reason"]
        return "\n  ".join([what, *lines, f"whole log: {self.launch.log_file}"])

    def _write_facts(self, *, ready: bool) -> None:
        settings = self.launch.settings
        facts = {
            "ready": ready,
            "pid": self.pid,
            "http_url": self.http_url,
            "grpc_url": self.grpc_url,
            "metrics_url": self.metrics_url,
            "http_port": settings.http_port,
            "grpc_port": settings.grpc_port,
            "metrics_port": settings.metrics_port,
            "log": str(self.launch.log_file),
            "command": list(self.launch.command),
            "environment": {
                name: value
                for name, value in self.launch.environment.items()
                if name != WORKER_TOKEN_VARIABLE  # the file is for everybody
            },
            "parameters": settings.stage.parameters(),
            "resident_plan": self._plan.as_json() if self._plan else None,
        }
        whole = self.launch.facts_file.with_suffix(".part")
        whole.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        whole.replace(self.launch.facts_file)  # a reader never sees half of it


@contextmanager
def _large_stack() -> Iterator[None]:
    """Start children with `STACK_BYTES` of stack, or with what the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))
