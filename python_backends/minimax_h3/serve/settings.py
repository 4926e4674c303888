"""What `h3 serve` was asked for, checked before anything starts."""

import logging
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import minimax_h3
from minimax_h3.core.compatibility import check_start
from minimax_h3.core.config import DAY_S, StageConfig, check_range
from minimax_h3.core.contracts import MODELS
from minimax_h3.core.errors import CheckpointError, ConfigError
from minimax_h3.serve.choices import check_choices
from minimax_h3.serve.gpus import check_device, processor_of
from minimax_h3.serve.media_root import check_media_root
from minimax_h3.weights.manifest import identify

LOG_LEVELS = ("error", "warning", "info", "verbose")
LOG_FORMATS = ("text", "json")
PREFLIGHTS = (REFUSE, WARN) = ("refuse", "warn")
LOOPBACK = "127.0.0.1"
PORT_NAMES = ("http_port", "grpc_port", "metrics_port")
# Every number, with its lowest and highest legal value; a port of 0 picks a free one.
RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        **dict.fromkeys(PORT_NAMES, (0, 65_535)),
        "ready_timeout_s": (0.1, DAY_S),
        "grace_s": (0, DAY_S),
        "exit_timeout_s": (0, DAY_S),
        "hang_timeout_s": (0.1, DAY_S),
        "silence_timeout_s": (0.1, DAY_S),
    }
)


def checkout_repository() -> Path:
    """The model repository of the checkout that this package was installed from."""
    return Path(minimax_h3.__file__).resolve().parents[2] / "model_repository"


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """One server to start.

    Attributes:
        stage: parameters of the models; a relative checkpoint counts from a model's folder.
        model_repository: where the models' version folders come from.
        run_dir: each start makes a folder of its own in it.
        tritonserver: the server's executable; None takes the one of the `nvidia-pytriton` wheel.
        host: address of all three services.
        http_port, grpc_port, metrics_port: 0 picks a free one.
        log_level: of the server and of the models.
        log_format: `json` adds a file of JSON lines from the models, and speaks JSON itself.
        otlp_url: where the server sends OpenTelemetry spans (OTLP over HTTP); empty sends none.
        ready_timeout_s: longest start, weights included.
        grace_s: how long jobs may go on after the stop signal before they are cancelled.
        exit_timeout_s: how long the server itself may take to exit before it is killed.
        hang_timeout_s: silence of a job before any model counts as hung; a job's own steps
            lengthen it.
        preflight: whether a machine that is too small is refused or only warned of.
        fits_rows: `max_packed_rows` is only an upper bound: the start lowers it to what fits.
        silence_timeout_s: the same for work without an estimate: encoders, decoders, a first step.
    """

    stage: StageConfig = field(default_factory=StageConfig)
    model_repository: Path = field(default_factory=checkout_repository)
    run_dir: Path = Path("run")
    tritonserver: Path | None = None
    host: str = LOOPBACK
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    log_level: str = "info"
    log_format: str = "text"
    otlp_url: str = ""
    ready_timeout_s: float = 900.0
    grace_s: float = 30.0
    exit_timeout_s: int = 3
    hang_timeout_s: float = 60.0
    silence_timeout_s: float = 600.0
    preflight: str = REFUSE
    fits_rows: bool = True

    def __post_init__(self) -> None:
        """Refuse values outside their range, naming the option."""
        if self.log_level not in LOG_LEVELS:
            legal = ", ".join(LOG_LEVELS)
            raise ConfigError(f"log-level: {self.log_level!r} is not legal; legal: one of {legal}")
        if self.log_format not in LOG_FORMATS:
            legal = ", ".join(LOG_FORMATS)
            raise ConfigError(f"log-format: {self.log_format!r} is not legal; legal: {legal}")
        if self.preflight not in PREFLIGHTS:
            legal = ", ".join(PREFLIGHTS)
            raise ConfigError(f"preflight: {self.preflight!r} is not legal; legal: {legal}")
        if self.otlp_url and not self.otlp_url.startswith(("http://", "https://")):
            raise ConfigError(
                f"otlp-url: {self.otlp_url!r} is not legal; legal: http://HOST:PORT/PATH"
            )
        for name, limits in RANGES.items():
            check_range(_flag(name), getattr(self, name), limits)
        self._check_twin_ports()

    def _check_twin_ports(self) -> None:
        taken: dict[int, str] = {}
        for name in PORT_NAMES:
            port = getattr(self, name)
            if port and (twin := taken.setdefault(port, name)) != name:
                raise ConfigError(
                    f"{_flag(name)}: {port} is not legal, {_flag(twin)} has it; legal: a port for "
                    "each service, or 0 to pick a free one"
                )

    @property
    def checkpoint(self) -> Path:
        """Absolute checkpoint folder."""
        return self.stage.checkpoint_path(self.model_repository / next(iter(MODELS)))

    @property
    def url_host(self) -> str:
        """Where a client on this machine reaches the server."""
        return LOOPBACK if self.host in ("0.0.0.0", "::", "") else self.host


def check_settings(settings: ServeSettings, *, starts: bool = True) -> ServeSettings:
    """Check everything that can be checked without the server.

    Args:
        settings: as asked for.
        starts: the server is started now, so its ports must be free and its device be here.

    Returns:
        The settings with definite ports, and with absolute paths of checkpoint and media root.

    Raises:
        ConfigError: a port is taken, the host is another machine's, the model repository is
            incomplete, the media root is not for media, or features exclude each other.
        CheckpointError: the checkpoint is absent or not whole.
        BackendUnavailableError: a device or backend that was asked for by name cannot be used.
    """
    for name in MODELS:
        shim = settings.model_repository / name / "1" / "model.py"
        if not shim.is_file():
            raise ConfigError(f"model-repository: {shim} is missing; legal: this project's own")
    run_dir = str(settings.run_dir.absolute())
    if any(character.isspace() for character in run_dir):
        raise ConfigError(
            f"run-dir: {run_dir!r} is not legal; legal: a path without white space, because "
            "tritonserver starts its models through a shell"
        )
    media_root = check_media_root(settings.stage.media_root, _own_folders(settings))
    if starts:
        check_device(settings.stage.device)
    check_start(settings.stage, logging.getLogger(__name__))
    try:
        manifest = identify(settings.checkpoint, settings.stage.task_type)
    except CheckpointError as error:
        raise CheckpointError(f"checkpoint: {error}") from error
    if starts:
        check_choices(settings.stage, manifest, processor_of(settings.stage.device))
    ports = _definite_ports(settings, starts=starts)
    return replace(
        settings,
        stage=replace(
            settings.stage, checkpoint_dir=str(settings.checkpoint), media_root=media_root
        ),
        http_port=ports["http_port"],
        grpc_port=ports["grpc_port"],
        metrics_port=ports["metrics_port"],
    )


def _own_folders(settings: ServeSettings) -> dict[str, Path]:
    """What the server itself reads and writes."""
    folders = {
        "run folder": settings.run_dir,
        "checkpoint": settings.checkpoint,
        "model repository": settings.model_repository,
    }
    if settings.stage.results_dir:
        any_model = settings.model_repository / next(iter(MODELS))
        folders["folder of kept results"] = any_model / settings.stage.results_dir
    return folders


def _check_host(host: str) -> None:
    """Refuse an address that is none of this machine's, before a port is blamed for it."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
    except OSError as error:
        raise ConfigError(
            f"host: {host!r} cannot be used: {error.strerror}; legal: an IPv4 address of this "
            "machine, a name of one, or 0.0.0.0 for all"
        ) from error


def _definite_ports(settings: ServeSettings, *, starts: bool) -> dict[str, int]:
    """The three ports; a free one is picked by binding it, and one that is named is tried so."""
    ports: dict[str, int] = {}
    if starts:
        _check_host(settings.host)
    with ExitStack() as held:  # held together, so that the same free port is not picked twice
        for name in PORT_NAMES:
            wanted = getattr(settings, name)
            if wanted and not starts:
                ports[name] = wanted
                continue
            probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((settings.host, wanted))
                probe.listen(1)
            except OSError as error:
                raise ConfigError(
                    f"{_flag(name)}: {wanted} cannot be used on {settings.host}: "
                    f"{error.strerror}; legal: a free port, or 0 to pick one"
                ) from error
            ports[name] = probe.getsockname()[1]
    return ports


def _flag(name: str) -> str:
    return name.removesuffix("_s").replace("_", "-")
