"""Does the checkpoint, with the largest request that is allowed, fit this machine?

Pure: what a plan needs against what was measured. A shortfall names both numbers, and what to
change.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from minimax_h3.core.config import COMBINED, NO_OFFLOAD, StageConfig, offloadable
from minimax_h3.core.errors import ConfigError, H3Error
from minimax_h3.serve.machine import Gpu, Machine, measure
from minimax_h3.serve.residency import (
    CROSSING,
    DEVICE,
    HOST,
    ResidentPlan,
    gigabytes,
    partitions_of,
    plan_residency,
)
from minimax_h3.serve.settings import REFUSE, ServeSettings
from minimax_h3.weights.manifest import CheckpointManifest, identify

LOG_BYTES = 200_000_000  # the log of a long run
USEFUL_ROWS = 8192  # advice of fewer rows than that helps nobody
USUAL_SHM_GIB = 8  # room for returned frames too
_ROW_STEP = 1024
# 1344x768 with 124 frames is 37,966 rows. Weights take turns where this does not fit otherwise.
USUAL_ROWS = 38 * _ROW_STEP
_NAMES = {DEVICE: "GPU memory", HOST: "host memory", CROSSING: CROSSING}


class PreflightError(H3Error):
    """The server would not fit; every shortfall is named."""

    kind = "does_not_fit"


@dataclass(frozen=True, slots=True)
class Shortfall:
    """One resource that is too small.

    Attributes:
        resource: what is short.
        needed, free: bytes.
        why: what takes the most of it.
        change: what an operator can do.
    """

    resource: str
    needed: int
    free: int
    why: str
    change: str

    def __str__(self) -> str:
        return (
            f"{self.resource}: {gigabytes(self.needed)} needed, {gigabytes(self.free)} free "
            f"({self.why}); {self.change}"
        )


@dataclass(frozen=True, slots=True)
class Preflight:
    """What a look ahead found.

    Attributes:
        settings: with the largest request that fits, where nobody asked for one.
        plan: what will lie where.
        free: bytes of each place.
        shortfalls: what is too small for it.
        lowered: what the largest request was lowered for, in words, if it was.
        offload_why: why weights take turns, in words, if nobody asked for it.
    """

    settings: ServeSettings
    plan: ResidentPlan
    free: Mapping[str, int]
    shortfalls: tuple[Shortfall, ...]
    lowered: str = ""
    offload_why: str = ""

    def lines(self) -> list[str]:
        """What to tell an operator.

        Raises:
            PreflightError: something is too small, and the settings refuse that; all is named.
        """
        short = [str(shortfall) for shortfall in self.shortfalls]
        if short and self.settings.preflight == REFUSE:
            head = "does not fit this machine (--preflight warn starts all the same):"
            raise PreflightError("\n  ".join([head, *short]))
        rows, turns = self.plan.max_packed_rows, self.settings.stage.offloaded()
        told = f"weights take turns (--offload {self.settings.stage.offload})"
        return [
            *self.plan.lines(self.free),
            *([told + self.offload_why] if turns else []),
            f"largest request: {rows} rows (--max-packed-rows){self.lowered}",
            *(f"warning: {line}" for line in short),
        ]


def look_ahead(settings: ServeSettings, machine: Machine | None = None) -> Preflight:
    """Plan a start and compare it with a machine.

    Args:
        settings: as `check_settings` returned them.
        machine: this one, unless a test describes another.

    Raises:
        ConfigError: the device is not here.
        CheckpointError: the checkpoint is not whole.
    """
    stage = settings.stage
    machine = machine or measure(settings.run_dir)
    manifests = {
        task: identify(settings.checkpoint, task) for task in partitions_of(stage.task_type)
    }
    gpu = chosen_gpu(stage.device, machine)
    free = _free(machine, gpu)
    lowered = offload_why = ""
    if stage.offload == "auto":
        rows = stage.max_packed_rows
        wanted = replace(
            stage, max_packed_rows=min(rows, USUAL_ROWS) if settings.fits_rows else rows
        )
        stage = replace(stage, offload=_choose_offload(manifests, wanted, machine, gpu))
        settings = replace(settings, stage=stage)
        if stage.offloaded():
            offload_why = _why_lower(plan_residency(manifests, wanted, on_gpu=True), free)
    if settings.fits_rows:
        rows = _largest_fit(manifests, stage, machine, gpu)
        if USEFUL_ROWS <= rows < stage.max_packed_rows:
            lowered = _why_lower(plan_residency(manifests, stage, on_gpu=gpu is not None), free)
            stage = replace(stage, max_packed_rows=rows)
            settings = replace(settings, stage=stage)
    plan = plan_residency(manifests, stage, on_gpu=gpu is not None)
    short = shortfalls(plan, machine, gpu, manifests, stage)
    return Preflight(settings, plan, free, short, lowered, offload_why)


def chosen_gpu(device: str, machine: Machine) -> Gpu | None:
    """The GPU that the models will take, or None for the CPU.

    Raises:
        ConfigError: a GPU that is not here.
    """
    if device == "cpu" or (device == "auto" and not machine.gpus):
        return None
    index = int(device.partition(":")[2] or 0)
    if index >= len(machine.gpus):
        legal = "".join(f", cuda:{number}" for number in range(len(machine.gpus)))
        raise ConfigError(f"device: {device!r} is not here; legal: cpu{legal}")
    return machine.gpus[index]


def shortfalls(
    plan: ResidentPlan,
    machine: Machine,
    gpu: Gpu | None,
    manifests: Mapping[str, CheckpointManifest],
    config: StageConfig,
) -> tuple[Shortfall, ...]:
    """Everything that is too small.

    Args:
        plan: of `manifests` and `config`.
        machine: free bytes.
        gpu: that the models take; None for the CPU.
        manifests: by partition's task type.
        config: of the server.
    """
    rows = _largest_fit(manifests, config, machine, gpu)
    fewer = (f"--max-packed-rows {rows} fits",) if rows >= USEFUL_ROWS else ()
    found = []
    for place, free in _free(machine, gpu).items():
        needed = plan.need(place)
        if needed > free:
            named = f"memory of the GPU {gpu.name}" if place == DEVICE and gpu else _NAMES[place]
            ways = [*fewer, *_ways(config, place, needed, on_gpu=gpu is not None)]
            if place == DEVICE and config.offload == NO_OFFLOAD:
                ways.append(_turns_need(manifests, config, machine))
            change = ", or ".join(ways) or "no setting makes this checkpoint fit"
            found.append(Shortfall(named, needed, free, _largest_parts(plan, place), change))
    disk = config.results_bytes + LOG_BYTES
    if disk > machine.disk:
        why, change = "kept results and the log", "name a --run-dir on a larger disk"
        found.append(Shortfall("disk of --run-dir", disk, machine.disk, why, change))
    return tuple(found)


def _free(machine: Machine, gpu: Gpu | None) -> dict[str, int]:
    places = {HOST: machine.host, CROSSING: machine.shared_memory}
    return {DEVICE: gpu.free, **places} if gpu else places


def _turns_need(
    manifests: Mapping[str, CheckpointManifest], config: StageConfig, machine: Machine
) -> str:
    """What the largest request takes when all large weights take turns."""
    names = ",".join(offloadable(config.task_type))
    plan = plan_residency(manifests, replace(config, offload=names), on_gpu=True)
    return (
        f"--offload {names} needs {gigabytes(plan.need(DEVICE))} there and "
        f"{gigabytes(plan.need(HOST))} of host memory ({gigabytes(machine.host)} free)"
    )


def _choose_offload(
    manifests: Mapping[str, CheckpointManifest],
    config: StageConfig,
    machine: Machine,
    gpu: Gpu | None,
) -> str:
    """The fewest models that must take turns; none where all fits at once, or on a CPU.

    Where the largest request does not fit even so, the way that leaves most room for one counts.
    """
    if gpu is None:
        return NO_OFFLOAD
    names = offloadable(config.task_type)
    heavy = [name for name in names if name != "video_decoder"]
    ways = [NO_OFFLOAD, ",".join(heavy), ",".join(names)]
    rows = [_largest_fit(manifests, replace(config, offload=way), machine, gpu) for way in ways]
    return ways[rows.index(max(rows))]  # the first of equal ones


def _why_lower(plan: ResidentPlan, free: Mapping[str, int]) -> str:
    """Every place that a plan has too little of, the scarcest first."""
    short = [place for place in free if plan.need(place) > free[place]]
    short.sort(key=lambda place: free[place] / plan.need(place))
    needs = (
        f"{gigabytes(plan.need(place))} of {_NAMES[place]}, {gigabytes(free[place])} are free"
        for place in short
    )
    return f", because {plan.max_packed_rows} would need {'; and '.join(needs)}"


def _largest_fit(
    manifests: Mapping[str, CheckpointManifest],
    config: StageConfig,
    machine: Machine,
    gpu: Gpu | None,
) -> int:
    """Rows of the largest request that fits, in steps, up to the configured ones; 0 if none."""
    most = config.max_packed_rows

    def fits(rows: int) -> bool:
        smaller = replace(config, max_packed_rows=rows)
        plan = plan_residency(manifests, smaller, on_gpu=gpu is not None)
        free = _free(machine, gpu)
        return all(plan.need(place) <= free[place] for place in free)

    if fits(most):
        return most
    low, high = 0, most // _ROW_STEP  # the first fits or is nothing, the second may not
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle * _ROW_STEP):
            low = middle
        else:
            high = middle - 1
    return low * _ROW_STEP


def _largest_parts(plan: ResidentPlan, place: str) -> str:
    if place == CROSSING:
        return "prompt features and latents of the largest request"
    parts = sorted(
        (part for part in plan.parts if part.place == place),
        key=lambda part: part.total,
        reverse=True,
    )
    return ", ".join(f"{part.model} {gigabytes(part.total)}" for part in parts[:4])


def _ways(config: StageConfig, place: str, needed: int, *, on_gpu: bool) -> list[str]:
    """What helps besides fewer rows: settings that need less of a place, or more of it."""
    if place == CROSSING:
        size = max(USUAL_SHM_GIB, math.ceil(needed / 2**30))
        return [f"give it more (Docker: --shm-size={size}g)"]
    ways = []
    if config.task_type == COMBINED:
        ways.append("--task-type fl2va or ref2va holds one DiT instead of two")
    if place == HOST and on_gpu and config.adaln_weights != "device":
        ways.append("--adaln-weights device moves the AdaLN weights to the GPU")
    if place == DEVICE and config.adaln_weights == "device":
        ways.append("--adaln-weights host takes the AdaLN weights off the GPU")
    return ways
