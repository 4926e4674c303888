"""Server configuration: the parameters of the `config.pbtxt` files, parsed once and strictly."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

from minimax_h3.core.canvas import MIN_SIDE
from minimax_h3.core.constants import TASK_FL2VA, TASK_REF2VA
from minimax_h3.core.errors import ConfigError
from minimax_h3.core.fields import MAX_STEPS, MIN_FRAMES
from minimax_h3.core.lengths import align_frames_up, audio_rows, video_rows
from minimax_h3.core.warm_up import warm_up_plans

COMBINED = "combined"
TASK_TYPES = (TASK_FL2VA, TASK_REF2VA, COMBINED)
DEVICES = "auto, cpu, cuda or cuda:N"
DTYPES = ("auto", "fp32", "bf16")
ATTENTION_BACKENDS = ("auto", "fa3", "cudnn", "trtllm", "sdpa", "fa3_e4m3", "trtllm_e4m3")
ROW_OPS = ("auto", "reference", "fused", "fused_exact")
ADALN_PLACES = ("auto", "device", "host")
DECODER_OPS = ("auto", "reference", "compiled")
OFFLOADABLE = ("text_encoder", "dit_fl2va", "dit_ref2va", "video_decoder")
NO_OFFLOAD = "none"
GPU_DECODER_TILES = 14
WEIGHTS = (CHECKPOINT, DUMMY) = ("checkpoint", "dummy")

_SHORTEST = align_frames_up(MIN_FRAMES)
# Rows of the smallest request that is legal, one token long, and room for the longest in 4096x2176.
MIN_PACKED_ROWS = video_rows(MIN_SIDE, MIN_SIDE, _SHORTEST) + audio_rows(_SHORTEST) + 1
MAX_PACKED_ROWS = 2**20
DAY_S = 86_400
# Every number, with its lowest and highest legal value.
RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "decoder_tiles": (0, 256),
        "max_packed_rows": (MIN_PACKED_ROWS, MAX_PACKED_ROWS),
        "running_jobs": (1, 64),
        "max_jobs": (1, 64),  # each is a process of the denoiser
        "stream_jobs": (0, 512),  # `jobs` is asked about all of them at once, twenty times a second
        "client_jobs": (1, 1024),
        "results_bytes": (0, 2**50),
        "session_lease_s": (1, DAY_S),
        "cpu_threads": (0, 1024),
        "test_step_delay_ms": (0, 1000 * DAY_S),
        "test_hang_at_step": (0, MAX_STEPS),
        "test_stage_delay_ms": (0, 1000 * DAY_S),
    }
)


@dataclass(frozen=True, slots=True)
class StageConfig:
    """Parameters that every model of the repository accepts; the same set in each `config.pbtxt`.

    Attributes:
        checkpoint_dir: official partition folder, its parent, or a diffusers layout. A relative
            path counts from the model's own folder, whatever the server's working directory.
        task_type: which DiT partitions the server holds.
        device, dtype, attention, row_ops: `auto` picks by capability and logs the choice. The two
            `e4m3` attentions trade accuracy for speed and are never picked.
        adaln_weights: where the DiT's AdaLN projections lie, 40 % of its weights, which are read
            once for each schedule; `auto` is the host's memory on a GPU.
        weights: `dummy` draws all weights at random on the device: of the checkpoint only configs,
            headers and tokenizer count. For measuring at full size without a release.
        offload: models whose weights take turns on the device, by name, or `none`. They wait in
            pinned host memory, for a GPU that cannot hold all at once. `auto` lets `h3 serve`
            choose by the memory that is free; a plain tritonserver takes it for `none`.
        decoder_ops: blocks of the video decoder: those of diffusers (`reference`), or ones with a
            kernel for all that lies between two matrix products (`compiled`, `auto` on a GPU).
        decoder_tiles: tiles that go through the video decoder together; 0 is 1 on a CPU and 14, a
            half of 1344x768, on a GPU.
        warm_up: shapes that every model runs once before it is ready, see `core.warm_up`; empty
            runs none.
        max_packed_rows: largest packed sequence that is admitted.
        running_jobs: jobs that take turns at the DiT; further ones wait inside the denoiser.
        max_jobs: running plus waiting jobs; beyond it requests are refused, streams wait.
        stream_jobs: streams that wait for a place beside the `max_jobs` that have one.
        client_jobs: unfinished jobs of one client, for requests that name their client.
        results_dir: where finished files are kept for `results`; empty means a folder of this
            user in the system's temporary folder. A relative path counts as `checkpoint_dir` does.
        results_bytes: most bytes of kept files; 0 keeps none.
        session_lease_s: seconds after which an untouched DiT session is checked and may be dropped.
        media_root: absolute folder below which a request may name files as `file:NAME`; empty
            refuses such names, so that no client makes the server open a path.
        cpu_threads: torch threads per process; 0 shares the cores between the models that compute
            at the same time.
        test_step_delay_ms: sleep added to every DiT step, for scheduling tests; 0 in service.
        test_hang_at_step: the DiT sleeps for ever in this step, for tests; 0 in service.
        test_stage_delay_ms: sleep before the work of each other stage, for tests; 0 in service.
    """

    checkpoint_dir: str = "../../checkpoints/h3-tiny"
    task_type: str = "fl2va"
    device: str = "auto"
    dtype: str = "auto"
    attention: str = "auto"
    row_ops: str = "auto"
    adaln_weights: str = "auto"
    weights: str = CHECKPOINT
    offload: str = "auto"
    decoder_ops: str = "auto"
    decoder_tiles: int = 0
    warm_up: str = ""
    max_packed_rows: int = 262_144
    running_jobs: int = 4
    max_jobs: int = 8
    stream_jobs: int = 64
    client_jobs: int = 8
    results_dir: str = ""
    results_bytes: int = 2 * 1024**3
    session_lease_s: float = 600.0
    media_root: str = ""
    cpu_threads: int = 0
    test_step_delay_ms: float = 0.0
    test_hang_at_step: int = 0
    test_stage_delay_ms: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values outside their range, naming the parameter."""
        _one_of("task_type", self.task_type, TASK_TYPES)
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("attention", self.attention, ATTENTION_BACKENDS)
        _one_of("row_ops", self.row_ops, ROW_OPS)
        _one_of("adaln_weights", self.adaln_weights, ADALN_PLACES)
        _one_of("decoder_ops", self.decoder_ops, DECODER_OPS)
        _one_of("weights", self.weights, WEIGHTS)
        device, _, index = self.device.partition(":")
        if device not in ("auto", "cpu", "cuda") or (index and not index.isdigit()):
            raise ConfigError(f"device: {self.device!r} is not legal; legal: {DEVICES}")
        if self.media_root and not Path(self.media_root).is_absolute():
            raise ConfigError(
                f"media_root: {self.media_root!r} is not legal; legal: an absolute path, or empty"
            )
        _check_offload(self.offload, self.task_type)
        warm_up_plans(self.warm_up)
        for name, limits in RANGES.items():
            check_range(name, getattr(self, name), limits)
        if self.running_jobs > self.max_jobs:
            raise ConfigError(
                f"max_jobs: {self.max_jobs} is not legal; legal: running_jobs, here "
                f"{self.running_jobs}, or more"
            )

    def parameters(self) -> dict[str, str]:
        """The `parameters` of a `config.pbtxt`; inverse of `parse_parameters`."""
        return {name: str(value) for name, value in asdict(self).items()}

    def tiles_per_batch(self, *, on_gpu: bool) -> int:
        """Tiles that go through the video decoder together."""
        return self.decoder_tiles or (GPU_DECODER_TILES if on_gpu else 1)

    def decoder_blocks(self, *, on_gpu: bool) -> str:
        """Blocks of the video decoder."""
        if self.decoder_ops == "auto":
            return "compiled" if on_gpu else "reference"
        return self.decoder_ops

    def offloaded(self) -> frozenset[str]:
        """Models whose weights take turns on the device."""
        return (
            frozenset() if self.offload in ("auto", NO_OFFLOAD) else frozenset(_names(self.offload))
        )

    def checkpoint_path(self, model_folder: Path) -> Path:
        """Absolute checkpoint folder; `model_folder` is the Triton model's own folder."""
        return (model_folder.resolve() / self.checkpoint_dir).resolve()


def _one_of(name: str, value: str, legal: tuple[str, ...]) -> None:
    if value not in legal:
        raise ConfigError(f"{name}: {value!r} is not legal; legal: one of {', '.join(legal)}")


def _names(words: str) -> list[str]:
    return [word.strip() for word in words.split(",")]


def _check_offload(value: str, task_type: str) -> None:
    """Two models or more of this server, each once: one alone has nobody to take turns with."""
    names, here = _names(value), offloadable(task_type)
    if value in ("auto", NO_OFFLOAD):
        return
    if len(names) < 2 or len(set(names)) < len(names) or not set(names) <= set(here):
        raise ConfigError(
            f"offload: {value!r} is not legal; legal: auto, {NO_OFFLOAD}, or two or more of "
            f"{', '.join(here)}, with commas"
        )


def offloadable(task_type: str) -> tuple[str, ...]:
    """Models whose weights may take turns, on a server of this task type."""
    held = TASK_TYPES[:2] if task_type == COMBINED else (task_type,)
    return tuple(
        name
        for name in OFFLOADABLE
        if not name.startswith("dit_") or name.removeprefix("dit_") in held
    )


def check_range(name: str, value: float, limits: tuple[float, float]) -> None:
    """Refuse a number outside its range.

    Args:
        name: of the parameter or option.
        value: as it was given; NaN is in no range.
        limits: lowest and highest legal value.

    Raises:
        ConfigError: names the number, its value and its range.
    """
    low, high = limits
    if not low <= value <= high:
        raise ConfigError(f"{name}: {value!r} is not legal; legal: {low!r}..{high!r}")


def parse_parameters(parameters: Mapping[str, str]) -> StageConfig:
    """Build a `StageConfig` from `config.pbtxt` string parameters.

    Raises:
        ConfigError: unknown parameter, or a value that does not parse or is out of range.
    """
    kinds = {name: type(default) for name, default in asdict(StageConfig()).items()}
    values: dict[str, str | int | float] = {}
    for name, text in parameters.items():
        if name not in kinds:
            raise ConfigError(f"{name}: unknown parameter; known: {', '.join(kinds)}")
        try:
            values[name] = kinds[name](text)
        except ValueError as error:
            raise ConfigError(
                f"{name}: {text!r} is not legal; legal: {kinds[name].__name__}"
            ) from error
    return StageConfig(**values)  # type: ignore[arg-type]  # kinds come from the dataclass itself
