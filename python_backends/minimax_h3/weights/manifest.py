"""Which checkpoint is this: layout, partition, tasks, sigma shifts. By metadata, without torch."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from minimax_h3.core.canvas import RELEASED, CanvasRule
from minimax_h3.core.config import COMBINED
from minimax_h3.core.constants import (
    CANVAS_MULTIPLE,
    TASK_FL2VA,
    TASK_REF2VA,
    TASK_T2VA,
    TEXT_ENCODER_LAYERS,
)
from minimax_h3.core.errors import CheckpointError
from minimax_h3.weights.dit_config import DiTConfig
from minimax_h3.weights.random_scales import (
    Scale,
    audio_vae_scale,
    text_encoder_scale,
    transformer_scale,
    video_vae_scale,
)
from minimax_h3.weights.safetensors_files import (
    ComponentFiles,
    read_component,
    read_file,
    read_json,
)
from minimax_h3.weights.schedule_facts import base_schedule, scheduler_shift, sigma_shifts

OFFICIAL, DIFFUSERS = "official", "diffusers"
FL2VA, REF2VA = "FL2VA", "Ref2VA"
_PARTITIONS = {TASK_FL2VA: FL2VA, TASK_REF2VA: REF2VA}
WEIGHTED = ("transformer", "text_encoder", "video_vae", "audio_vae")
_SHARED = WEIGHTED[1:]  # loaded once, whichever partitions are served

_DRAWN: Mapping[str, Scale] = {
    "transformer": transformer_scale,
    "text_encoder": text_encoder_scale(TEXT_ENCODER_LAYERS),
    "video_vae": video_vae_scale,
    "audio_vae": audio_vae_scale,
}

_DIFFUSERS_TRANSFORMERS = {FL2VA: "transformer", REF2VA: "transformer_ref"}
_DIFFUSERS_TASKS = {FL2VA: (TASK_T2VA, TASK_FL2VA), REF2VA: (TASK_REF2VA,)}
_DIFFUSERS_CLASSES = {
    "transformer": "MiniMaxH3Transformer3DModel",
    "video_vae": "AutoencoderKLMiniMaxH3",
    "audio_vae": "AutoencoderKLMiniMaxH3Audio",
}

Config = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    """A checkpoint that was found complete, at the level of file headers.

    Attributes:
        layout: `official` or `diffusers`.
        partition: `FL2VA` or `Ref2VA`.
        tasks: tasks that the partition serves.
        root: the official partition folder, or the root of the diffusers layout.
        configs: raw JSON per component; `video_vae_source` and `audio_vae_metadata` exist in the
            official layout only.
        weights: header of every weight file, per component of `WEIGHTED`.
        tokenizer, processor: their folders.
        video_flow_shift, audio_flow_shift: sigma shifts.
        defaulted_shifts: names of shifts that the checkpoint does not state.
        base_schedule: positions of a distilled release, before the shift; None for the base model.
        canvas: sizes that it was trained on.
        digest: SHA-256 over configs, headers and the first values of each tensor; of drawn weights
            it begins with `dummy-`.
    """

    layout: str
    partition: str
    tasks: tuple[str, ...]
    root: Path
    configs: Mapping[str, Config] = field(repr=False)
    weights: Mapping[str, ComponentFiles] = field(repr=False)
    tokenizer: Path
    processor: Path
    video_flow_shift: float
    audio_flow_shift: float
    defaulted_shifts: tuple[str, ...]
    base_schedule: tuple[float, ...] | None
    canvas: CanvasRule
    digest: str

    @property
    def dit_config(self) -> DiTConfig:
        """Shape of the transformer."""
        raw = self.configs["transformer"]
        if self.layout == OFFICIAL:
            return DiTConfig.from_official(raw)
        return DiTConfig.from_diffusers(raw)


def identify(path: Path, task_type: str, *, drawn: bool = False) -> CheckpointManifest:
    """Find and check a checkpoint.

    Args:
        path: an official partition folder, the folder that holds partitions, or the root of a
            diffusers layout.
        task_type: `fl2va`, `ref2va`, or `combined`, which needs both partitions and answers with
            the FL2VA one and the tasks of both.
        drawn: its weights are to be drawn at random instead of read, see `ComponentFiles`.

    Raises:
        CheckpointError: a file is missing or contradicts another; it is named.
    """
    manifest = _identify(Path(path), task_type)
    if not drawn:
        return manifest
    weights = {name: replace(files, drawn=_DRAWN[name]) for name, files in manifest.weights.items()}
    return replace(manifest, weights=MappingProxyType(weights), digest=f"dummy-{manifest.digest}")


def _identify(folder: Path, task_type: str) -> CheckpointManifest:
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; legal: a checkpoint's folder")
    if task_type == COMBINED:
        return _combine(_identify(folder, TASK_FL2VA), _identify(folder, TASK_REF2VA))
    if task_type not in _PARTITIONS:
        legal = ", ".join((*_PARTITIONS, COMBINED))
        raise CheckpointError(f"task_type: {task_type!r} is not legal; legal: {legal}")
    wanted = _PARTITIONS[task_type]
    partitions = official_partitions(folder)
    if wanted in partitions:
        return _read_official(partitions[wanted], wanted)
    if (folder / "modular_model_index.json").is_file():
        return _read_diffusers(folder, wanted)
    if partitions:
        raise CheckpointError(
            f"{folder}: holds partition {', '.join(partitions)}; "
            f"task_type {task_type!r} needs {wanted}"
        )
    raise CheckpointError(
        f"{folder}: no checkpoint here; legal: a folder whose model_index.json has an entry "
        "_minimax_h3, the folder above it, or one with modular_model_index.json"
    )


def _combine(first: CheckpointManifest, second: CheckpointManifest) -> CheckpointManifest:
    for name in ("video_flow_shift", "audio_flow_shift", "base_schedule", "canvas"):
        if getattr(first, name) != getattr(second, name):
            raise CheckpointError(
                f"{second.root}: {name} {getattr(second, name)} differs from "
                f"{getattr(first, name)} of {first.root}; serve the partitions separately"
            )
    for component in _SHARED:
        ours, theirs = first.weights[component], second.weights[component]
        if [file.fingerprint for file in ours.files] != [file.fingerprint for file in theirs.files]:
            raise CheckpointError(
                f"{theirs.folder}: other weights than {ours.folder}, which both partitions would "
                "share; serve the partitions separately"
            )
    digest = hashlib.sha256((first.digest + second.digest).encode()).hexdigest()
    return replace(first, tasks=(*first.tasks, *second.tasks), digest=digest)


def _release(folder: Path) -> Config | None:
    index = folder / "model_index.json"
    if not index.is_file():
        return None
    release = read_json(index).get("_minimax_h3")
    if release is None:
        return None
    if not isinstance(release, dict):
        raise CheckpointError(f"{index}: _minimax_h3 is not an object")
    if release.get("schema_version", 1) != 1:
        raise CheckpointError(
            f"{index}: _minimax_h3.schema_version {release['schema_version']!r} is not legal; "
            "legal: 1"
        )
    return release


def official_partitions(folder: Path) -> dict[str, Path]:
    """Official partition folders at `folder` or directly below it, by what their metadata says.

    Raises:
        CheckpointError: unreadable or unknown metadata, or two folders with the same partition.
    """
    found: dict[str, Path] = {}
    candidates = [folder]
    if _release(folder) is None:
        candidates = sorted(child for child in folder.iterdir() if child.is_dir())
    for candidate in candidates:
        release = _release(candidate)
        if release is None:
            continue
        stated = str(release.get("partition", "")).lower()
        if stated not in _PARTITIONS:
            raise CheckpointError(
                f"{candidate / 'model_index.json'}: _minimax_h3.partition "
                f"{release.get('partition')!r} is not legal; legal: {', '.join(_PARTITIONS)}"
            )
        partition = _PARTITIONS[stated]
        if partition in found:
            raise CheckpointError(
                f"{folder}: {found[partition].name} and {candidate.name} both hold partition "
                f"{partition}; name one of them"
            )
        found[partition] = candidate
    return found


def _read_official(folder: Path, partition: str) -> CheckpointManifest:
    release = _release(folder)
    assert release is not None
    index = folder / "model_index.json"
    video = folder / "video_vae"
    configs: dict[str, Config] = {
        name: read_json(folder / name / "config.json") for name in WEIGHTED
    }
    source = video / _plain_name(video, configs["video_vae"], "source_path")
    configs["video_vae_source"] = read_json(source / "config.json")
    configs["audio_vae_metadata"] = read_json(folder / "audio_vae" / "metadata.json")
    video_file = source / _plain_name(video, configs["video_vae"], "source_safetensors_path")
    weights = {
        "transformer": read_component(folder / "transformer", "model"),
        "text_encoder": read_component(folder / "text_encoder", "model"),
        "video_vae": ComponentFiles(source, (read_file(video_file),)),
        "audio_vae": read_component(folder / "audio_vae", "model"),
    }
    tasks = release.get("tasks")
    if not isinstance(tasks, list) or not tasks:
        raise CheckpointError(f"{index}: _minimax_h3.tasks is absent or empty")
    shifts = release.get("sigma_shift_scales", {})
    if not isinstance(shifts, dict):
        raise CheckpointError(f"{index}: _minimax_h3.sigma_shift_scales is not an object")
    facts: dict[str, object] = {
        "tasks": tuple(str(task).lower() for task in tasks),
        "base_schedule": base_schedule(index, release.get("base_schedule")),
        "canvas": _canvas(index, release.get("canvas", {})),
        **sigma_shifts(index, shifts.get("video"), shifts.get("audio")),
    }
    return _finish(OFFICIAL, partition, folder, configs, weights, facts)


def _read_diffusers(root: Path, partition: str) -> CheckpointManifest:
    index = root / "modular_model_index.json"
    if not str(read_json(index).get("_class_name", "")).startswith("MiniMaxH3"):
        raise CheckpointError(f"{index}: _class_name does not name a MiniMaxH3 pipeline")
    folders = {
        "transformer": root / _DIFFUSERS_TRANSFORMERS[partition],
        "text_encoder": root / "text_encoder",
        "video_vae": root / "vae",
        "audio_vae": root / "audio_vae",
    }
    configs: dict[str, Config] = {
        name: read_json(folder / "config.json") for name, folder in folders.items()
    }
    for name, legal in _DIFFUSERS_CLASSES.items():
        if configs[name].get("_class_name") != legal:
            raise CheckpointError(
                f"{folders[name] / 'config.json'}: _class_name "
                f"{configs[name].get('_class_name')!r} is not legal; legal: {legal}"
            )
    weights = {
        name: read_component(
            folder, "model" if name == "text_encoder" else "diffusion_pytorch_model"
        )
        for name, folder in folders.items()
    }
    facts: dict[str, object] = {
        "tasks": _DIFFUSERS_TASKS[partition],
        "base_schedule": None,
        "canvas": RELEASED,
        **sigma_shifts(
            index,
            scheduler_shift(root / "scheduler"),
            scheduler_shift(root / "audio_scheduler"),
        ),
    }
    return _finish(DIFFUSERS, partition, root, configs, weights, facts)


def _finish(
    layout: str,
    partition: str,
    root: Path,
    configs: dict[str, Config],
    weights: dict[str, ComponentFiles],
    facts: dict[str, object],
) -> CheckpointManifest:
    tokenizer, processor = root / "tokenizer", root / "processor"
    for needed in (tokenizer / "tokenizer.json", processor):
        if not needed.exists():
            raise CheckpointError(f"{needed}: missing")
    manifest = CheckpointManifest(
        layout=layout,
        partition=partition,
        root=root,
        configs=MappingProxyType(configs),
        weights=MappingProxyType(weights),
        tokenizer=tokenizer,
        processor=processor,
        digest=_digest(partition, configs, weights, facts, tokenizer),
        **facts,  # type: ignore[arg-type]  # built by the two readers above
    )
    _check_widths(manifest)
    return manifest


def _check_widths(manifest: CheckpointManifest) -> None:
    text_config = manifest.configs["text_encoder"].get("text_config")
    width = text_config.get("hidden_size") if isinstance(text_config, dict) else None
    if width != manifest.dit_config.text_dim:
        raise CheckpointError(
            f"{manifest.root}: text_encoder hidden_size {width!r} differs from the transformer's "
            f"text_dim {manifest.dit_config.text_dim}"
        )


def _digest(
    partition: str,
    configs: Mapping[str, Config],
    weights: Mapping[str, ComponentFiles],
    facts: Mapping[str, object],
    tokenizer: Path,
) -> str:
    stated = {
        "partition": partition,
        "configs": configs,
        "facts": {name: fact for name, fact in facts.items() if name != "canvas"},
        "files": {name: [file.fingerprint for file in weights[name].files] for name in weights},
        "tokenizer": hashlib.sha256((tokenizer / "tokenizer.json").read_bytes()).hexdigest(),
    }
    return hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()


def stated_canvas(folder: Path) -> CanvasRule:
    """The canvas rule of a checkpoint, by its index alone; the released one where there is none.

    Raises:
        CheckpointError: an index is unreadable or states something that is no rule.
    """
    if not folder.is_dir():
        return RELEASED
    for partition in official_partitions(folder).values():
        release = _release(partition) or {}
        return _canvas(partition / "model_index.json", release.get("canvas", {}))
    return RELEASED


def _canvas(source: Path, stated: object) -> CanvasRule:
    """A checkpoint's own rule; what it does not state is as in the release."""
    known = asdict(RELEASED)
    is_rule = isinstance(stated, dict) and all(
        key in known and type(value) is type(known[key]) for key, value in stated.items()
    )
    if is_rule:
        rule = replace(RELEASED, **stated)  # type: ignore[arg-type]  # a mapping, by the line above
        edges = (rule.short_edge, rule.reference_short_edge)
        if min(edges) >= CANVAS_MULTIPLE and rule.max_area >= rule.short_edge**2:
            return rule
    raise CheckpointError(
        f"{source}: _minimax_h3.canvas {stated!r} is not legal; legal: {', '.join(known)}, edges "
        f"of {CANVAS_MULTIPLE} pixels or more and room for a square"
    )


def _plain_name(folder: Path, config: Config, key: str) -> str:
    name = config.get(key)
    if not isinstance(name, str) or not name or Path(name).name != name:
        raise CheckpointError(
            f"{folder / 'config.json'}: {key} {name!r} is not legal; legal: a plain name"
        )
    return name
