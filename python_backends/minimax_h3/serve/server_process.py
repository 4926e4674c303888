"""A running tritonserver: start, wait until ready, stop without leftovers."""

import http
import http.client
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
from types import TracebackType

from minimax_h3.core.contracts import ENSEMBLE, models_of
from minimax_h3.core.errors import H3Error
from minimax_h3.serve.launch import SHARED_MEMORY, STACK_BYTES, Launch, prepare_launch
from minimax_h3.serve.server_log import error_lines, loaded_models
from minimax_h3.serve.settings import ServeSettings, check_settings

POLL_S = 0.2
PROBE_TIMEOUT_S = 5.0
# Tensors cross processes there; a full-size clip with its frames is several hundred MB, held twice.
ENOUGH_SHARED_MEMORY = 2 * 2**30  # bytes
UNLOAD_S = 30.0  # models unload one after another once no request is in flight


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
        self._process: subprocess.Popen[bytes] | None = None
        self.stop_requested = threading.Event()

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
        self._launch = prepare_launch(check_settings(self._wanted), os.environ)
        free = shutil.disk_usage(SHARED_MEMORY).free
        if free < ENOUGH_SHARED_MEMORY:
            self._announce(
                f"warning: {SHARED_MEMORY} has {free / 2**20:.0f} MiB free; a large request fails "
                f"below {ENOUGH_SHARED_MEMORY / 2**20:.0f} MiB (Docker: --shm-size=8g)"
            )
        with self._launch.log_file.open("wb") as log, _large_stack():
            # A group of its own: Ctrl-C reaches only us, and stubs can be ended with the server.
            self._process = subprocess.Popen(  # our own command line
                self._launch.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._launch.environment},
                start_new_session=True,
            )
        self._write_facts(ready=False)
        self._announce(f"tritonserver runs as process {self.pid}, log {self._launch.log_file}")

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
            if self._is_ready():
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

    def wait(self) -> int | None:
        """Wait until the server exits, or until `stop_requested`.

        Returns:
            The exit status, or None when the server still runs.
        """
        while self.poll() is None and not self.stop_requested.wait(POLL_S):
            pass
        return self.poll()

    def poll(self) -> int | None:
        """Exit status of the server, or None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def reasons(self) -> list[str]:
        """What the log says about why the server died."""
        return error_lines(self._log_text())

    def kill(self) -> None:
        """End the server and its stubs at once."""
        if self._process is not None:
            self._signal_group(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the server, by force when it takes too long, and remove what it leaves behind."""
        if self._launch is None:
            return
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)
                try:
                    self._process.wait(self._launch.settings.exit_timeout_s + UNLOAD_S)
                except subprocess.TimeoutExpired:
                    self._announce("tritonserver did not stop in time and is killed")
            self._signal_group(signal.SIGKILL)  # the server, or stubs that outlived it
            self._process.wait()
        self._launch.remove_shared_memory()
        self._launch.remove_files()
        self._launch = None

    def _signal_group(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return  # everything has ended by itself

    def _is_ready(self) -> bool:
        # Not urllib: it would ask a proxy of the environment for an address of this machine.
        connection = http.client.HTTPConnection(self.http_url, timeout=PROBE_TIMEOUT_S)
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

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
            "environment": dict(self.launch.environment),
            "parameters": settings.stage.parameters(),
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
