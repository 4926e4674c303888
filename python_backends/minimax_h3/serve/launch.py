"""The command line of tritonserver and the files of one start."""

import math
import secrets
import shlex
import shutil
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from minimax_h3.core.contracts import (
    BLS_THREADS,
    JSON_LOG_VARIABLE,
    TRACE_VARIABLE,
    WORKER_TOKEN_VARIABLE,
)
from minimax_h3.serve.installation import find_installation
from minimax_h3.serve.layout import BACKENDS, REPOSITORY, lay_out, to_json
from minimax_h3.serve.settings import ServeSettings
from minimax_h3.serve.shared_memory import region_prefix, remove

RESULTS, JSON_LOG = "results", "models.jsonl"
_LEVEL_FLAGS = {
    "error": ("--log-info=false", "--log-warning=false"),
    "warning": ("--log-info=false",),
    "info": (),
    "verbose": ("--log-verbose=1",),
}

# tritonserver 2.51 parses an HTTP body on the stack of a thread, about two bytes for each of the
# body's, and the usual 8 MiB end at 4.5 MB: one large request would crash the server.
STACK_BYTES = 512 * 1024**2
# The stubs are started through bash, which reads this file first: they keep the usual stack.
STUB_SHELL = Path(__file__).with_name("stub_shell.sh")


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything that a start needs.

    Attributes:
        settings: with definite ports and checkpoint.
        run_id: names this start.
        folder: this start's own folder; `lay_out` makes it.
        command: tritonserver and its flags.
        environment: variables to set on top of the inherited ones.
        shared_memory_prefix: how this server's regions in /dev/shm begin.
    """

    settings: ServeSettings
    run_id: str
    folder: Path
    command: tuple[str, ...]
    environment: Mapping[str, str]
    shared_memory_prefix: str

    @property
    def log_file(self) -> Path:
        """Output of the server and of all models."""
        return self.folder / "server.log"

    @property
    def facts_file(self) -> Path:
        """JSON: how to reach and recognise the running server."""
        return self.folder / "server.json"

    def shell_text(self) -> str:
        """The same start as shell commands."""
        exports = [
            f"export {name}={shlex.quote(value)}" for name, value in self.environment.items()
        ]
        command = " \\\n  ".join(shlex.quote(word) for word in self.command)
        stack = f"ulimit -s {STACK_BYTES // 1024} || ulimit -s $(ulimit -Hs)"
        files = shlex.join(
            (
                sys.executable,
                "-m",
                "minimax_h3.serve.layout",
                str(self.folder),
                to_json(self.settings),
            )
        )
        return "\n".join([*exports, f"{files} || exit 1", stack, f"exec {command}"])

    def lay_out(self) -> None:
        """Write the files of this start into `folder`."""
        lay_out(self.settings, self.folder)

    def remove_shared_memory(self) -> None:
        """Remove the regions that a killed server leaves behind."""
        remove(self.run_id)

    def remove_files(self) -> None:
        """Remove what nobody needs after the stop; the log stays."""
        self.facts_file.unlink(missing_ok=True)
        for name in (BACKENDS, REPOSITORY, RESULTS):
            shutil.rmtree(self.folder / name, ignore_errors=True)


def prepare_launch(settings: ServeSettings, inherited: Mapping[str, str]) -> Launch:
    """Decide how a start looks; nothing is written.

    Args:
        settings: as `check_settings` returned them.
        inherited: environment of this process.

    Raises:
        BackendUnavailableError: no server to start.
    """
    run_id = uuid.uuid4().hex[:8]
    folder = settings.run_dir.resolve() / run_id
    installation = find_installation(settings.tritonserver, folder / BACKENDS)
    results_dir = settings.stage.results_dir or str(folder / RESULTS)
    settings = replace(settings, stage=replace(settings.stage, results_dir=results_dir))
    prefix = region_prefix(run_id)
    command = (
        str(installation.executable),
        *server_flags(settings, folder / REPOSITORY, prefix),
        *installation.flags,
    )
    environment = {
        **installation.environment(inherited),
        "BASH_ENV": str(STUB_SHELL),
        WORKER_TOKEN_VARIABLE: secrets.token_hex(16),
    }
    if settings.log_format == "json":
        environment[JSON_LOG_VARIABLE] = str(folder / JSON_LOG)
    if settings.otlp_url:
        environment[TRACE_VARIABLE] = "yes"
    return Launch(settings, run_id, folder, command, environment, prefix)


def server_flags(
    settings: ServeSettings, repository: Path, shared_memory_prefix: str
) -> tuple[str, ...]:
    """Flags of tritonserver, the same for every installation."""
    return (
        f"--model-repository={repository}",
        f"--http-address={settings.host}",
        f"--grpc-address={settings.host}",
        f"--metrics-address={settings.host}",
        f"--http-port={settings.http_port}",
        f"--grpc-port={settings.grpc_port}",
        f"--metrics-port={settings.metrics_port}",
        "--model-control-mode=explicit",
        "--load-model=*",
        "--disable-auto-complete-config",
        "--exit-on-error=true",
        "--strict-readiness=true",
        f"--exit-timeout-secs={settings.exit_timeout_s}",
        "--grpc-header-forward-pattern=x-.*",
        f"--backend-config=python,shm-region-prefix-name={shared_memory_prefix}",
        # A model that loads weights is silent for long.
        f"--backend-config=python,stub-timeout-seconds={math.ceil(settings.ready_timeout_s)}",
        f"--backend-config=python,thread-pool-size={BLS_THREADS}",
        *_LEVEL_FLAGS[settings.log_level],
        *_trace_flags(settings.otlp_url),
    )


def _trace_flags(otlp_url: str) -> tuple[str, ...]:
    """Flags that send a span for each request of each model, as one trace a client's request."""
    if not otlp_url:
        return ()
    return (
        "--trace-config=mode=opentelemetry",
        "--trace-config=rate=1",
        "--trace-config=level=TIMESTAMPS",
        f"--trace-config=opentelemetry,url={otlp_url}",
        "--trace-config=opentelemetry,resource=service.name=minimax-h3",
    )
