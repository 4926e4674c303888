"""`h3 serve`: starts tritonserver with this model repository, watches it, stops it."""

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from minimax_h3.core.config import (
    ADALN_PLACES,
    ATTENTION_BACKENDS,
    DECODER_OPS,
    DEVICES,
    DTYPES,
    MAX_PACKED_ROWS,
    MIN_PACKED_ROWS,
    OFFLOADABLE,
    ROW_OPS,
    TASK_TYPES,
    WEIGHTS,
    StageConfig,
)
from minimax_h3.core.errors import H3Error
from minimax_h3.serve.launch import prepare_launch
from minimax_h3.serve.server_process import ServerProcess, ServerStoppedError
from minimax_h3.serve.service import Service
from minimax_h3.serve.settings import (
    LOG_FORMATS,
    LOG_LEVELS,
    PREFLIGHTS,
    ServeSettings,
    check_settings,
)

SUMMARY = "Start tritonserver with the models of this repository."
FAILED = 1
STANDARD_INPUT = 0
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the last: its terminal is gone


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options; every default is the one of the typed configuration."""
    stage, serve = StageConfig(), ServeSettings()
    models = parser.add_argument_group("models")
    models.add_argument(
        "--checkpoint", type=Path, metavar="DIR", help="default: checkpoints/h3-tiny"
    )
    models.add_argument("--task-type", choices=TASK_TYPES, default=stage.task_type)
    models.add_argument("--device", default=stage.device, help=f"{DEVICES}; default %(default)s")
    models.add_argument("--dtype", choices=DTYPES, default=stage.dtype)
    models.add_argument("--attention", choices=ATTENTION_BACKENDS, default=stage.attention)
    models.add_argument("--row-ops", choices=ROW_OPS, default=stage.row_ops)
    models.add_argument("--adaln-weights", choices=ADALN_PLACES, default=stage.adaln_weights)
    models.add_argument(
        "--weights",
        choices=WEIGHTS,
        default=stage.weights,
        help="dummy: drawn at random on the device, nothing but headers is read",
    )
    models.add_argument(
        "--offload",
        default=stage.offload,
        metavar="MODEL,...",
        help="models whose weights take turns on the GPU and wait in host memory meanwhile, of "
        f"{', '.join(OFFLOADABLE)}; none: all stay; default %(default)s: what fits needs it",
    )
    models.add_argument("--decoder-ops", choices=DECODER_OPS, default=stage.decoder_ops)
    models.add_argument(
        "--decoder-tiles",
        type=int,
        default=stage.decoder_tiles,
        metavar="N",
        help="tiles that go through the video decoder together; default 0: by device",
    )
    models.add_argument(
        "--warm-up",
        default=stage.warm_up,
        metavar="WxHxF,...",
        help="shapes to run before the server is ready, such as 1344x768x124; default none",
    )
    models.add_argument(
        "--running-jobs", type=int, default=stage.running_jobs, help="jobs that share the DiT"
    )
    models.add_argument(
        "--max-jobs", type=int, default=stage.max_jobs, help="running plus waiting jobs"
    )
    models.add_argument(
        "--stream-jobs", type=int, default=stage.stream_jobs, help="streams that wait for a place"
    )
    models.add_argument(
        "--client-jobs", type=int, default=stage.client_jobs, help="unfinished jobs of one client"
    )
    models.add_argument(
        "--max-packed-rows",
        type=int,
        metavar="N",
        help=f"largest request, rows, {MIN_PACKED_ROWS} to {MAX_PACKED_ROWS}; default: what fits, "
        f"up to {stage.max_packed_rows}",
    )
    models.add_argument(
        "--media-root",
        type=Path,
        metavar="DIR",
        help="requests may name files below it as file:NAME; default: no names, only bytes",
    )
    models.add_argument(
        "--cpu-threads", type=int, default=stage.cpu_threads, help="per model; 0: share the cores"
    )
    models.add_argument(
        "--test-step-delay-ms",
        type=float,
        default=stage.test_step_delay_ms,
        help="for tests only: sleep this long in every DiT step",
    )
    models.add_argument(
        "--test-hang-at-step",
        type=int,
        default=stage.test_hang_at_step,
        help="for tests only: the DiT hangs in this step of a job",
    )
    server = parser.add_argument_group("server")
    server.add_argument("--host", default=serve.host, help="default %(default)s: this machine only")
    for service in ("http", "grpc", "metrics"):
        port = getattr(serve, f"{service}_port")
        server.add_argument(
            f"--{service}-port",
            type=int,
            default=port,
            metavar="N",
            help=f"default {port}; 0: a free one",
        )
    server.add_argument("--model-repository", type=Path, default=serve.model_repository)
    server.add_argument("--run-dir", type=Path, default=serve.run_dir, help="default ./run")
    server.add_argument(
        "--tritonserver", type=Path, metavar="PATH", help="default: the nvidia-pytriton wheel's"
    )
    server.add_argument("--log-level", choices=LOG_LEVELS, default=serve.log_level)
    server.add_argument("--log-format", choices=LOG_FORMATS, default=serve.log_format)
    server.add_argument(
        "--otlp-url", default=serve.otlp_url, metavar="URL", help="send OpenTelemetry spans there"
    )
    for name, meaning in (
        ("ready_timeout", "longest start, weights included"),
        ("grace", "how long jobs may go on after the stop signal"),
        ("hang_timeout", "silence of a job before a model may count as hung"),
        ("silence_timeout", "the same for work without an estimate"),
    ):
        server.add_argument(
            f"--{name.replace('_', '-')}",
            type=float,
            default=getattr(serve, f"{name}_s"),
            metavar="SECONDS",
            help=f"{meaning}; default %(default)g",
        )
    server.add_argument(
        "--stop-with-stdin",
        action="store_true",
        help="stop when standard input ends: a program that starts this takes it along",
    )
    server.add_argument(
        "--preflight",
        choices=PREFLIGHTS,
        default=serve.preflight,
        help="what to do when checkpoint and largest request do not fit; default %(default)s",
    )
    server.add_argument(
        "--print-command",
        action="store_true",
        help="start nothing; print a shell script that starts the same server without h3 serve",
    )


def settings_of(options: argparse.Namespace) -> ServeSettings:
    """The typed settings of a parsed command line.

    Raises:
        ConfigError: an option is outside its range.
    """
    checkpoint = options.checkpoint.resolve() if options.checkpoint else None
    stage = StageConfig(
        checkpoint_dir=str(checkpoint or StageConfig().checkpoint_dir),
        task_type=options.task_type,
        device=options.device,
        dtype=options.dtype,
        attention=options.attention,
        row_ops=options.row_ops,
        adaln_weights=options.adaln_weights,
        weights=options.weights,
        offload=options.offload,
        decoder_ops=options.decoder_ops,
        decoder_tiles=options.decoder_tiles,
        warm_up=options.warm_up,
        running_jobs=options.running_jobs,
        max_jobs=options.max_jobs,
        stream_jobs=options.stream_jobs,
        client_jobs=options.client_jobs,
        max_packed_rows=_max_packed_rows(options.max_packed_rows),
        media_root=str(options.media_root.resolve()) if options.media_root else "",
        cpu_threads=options.cpu_threads,
        test_step_delay_ms=options.test_step_delay_ms,
        test_hang_at_step=options.test_hang_at_step,
    )
    return ServeSettings(
        stage=stage,
        model_repository=options.model_repository.resolve(),
        run_dir=options.run_dir,
        tritonserver=options.tritonserver,
        host=options.host,
        http_port=options.http_port,
        grpc_port=options.grpc_port,
        metrics_port=options.metrics_port,
        log_level=options.log_level,
        log_format=options.log_format,
        otlp_url=options.otlp_url,
        ready_timeout_s=options.ready_timeout,
        grace_s=options.grace,
        hang_timeout_s=options.hang_timeout,
        silence_timeout_s=options.silence_timeout,
        preflight=options.preflight,
        fits_rows=options.max_packed_rows is None,
    )


def _max_packed_rows(asked: int | None) -> int:
    return StageConfig().max_packed_rows if asked is None else asked


def run(options: argparse.Namespace) -> int:
    """Serve until a signal or the server's end; exit status 0 only after a signal."""
    try:
        settings = settings_of(options)
        if options.print_command:
            checked = check_settings(settings, starts=False)
            print(prepare_launch(checked, os.environ).shell_text())
            return 0
        return _serve(settings, stop_with_stdin=options.stop_with_stdin)
    except H3Error as error:
        print(f"h3 serve: {error}", file=sys.stderr)
        return FAILED


def _serve(settings: ServeSettings, *, stop_with_stdin: bool) -> int:
    def say(line: str) -> None:
        if settings.log_format == "json":
            entry = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "message": line}
            print(json.dumps({**entry, "source": "h3 serve"}), flush=True)
        else:
            print(f"h3 serve: {line}", flush=True)

    service = Service(settings, say)
    if stop_with_stdin:
        waiting = threading.Thread(target=_stop_at_end, args=(service.server,), daemon=True)
        waiting.start()
    with _signals_stop(service.server):
        try:
            service.run()
            say("stopped")
        except ServerStoppedError as stopped:
            say(str(stopped))
    return 0


def _stop_at_end(server: ServerProcess) -> None:
    """Ask for a graceful stop when standard input ends."""
    while os.read(
        STANDARD_INPUT, 4096
    ):  # not `sys.stdin`, whose lock must be free when Python exits
        continue
    server.stop_requested.set()


@contextmanager
def _signals_stop(server: ServerProcess) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP ask for a graceful stop; a second one ends the server at once."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        del number, frame
        if server.stop_requested.is_set():
            server.kill()
        server.stop_requested.set()

    before = {number: signal.signal(number, on_signal) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
