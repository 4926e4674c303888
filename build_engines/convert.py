"""Official layout -> diffusers layout, streamed tensor by tensor. Source: model sheet 2.2 and 6."""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import diffusers
import torch
from torch import Tensor

from build_engines.autoencoders import audio_autoencoder, video_autoencoder
from build_engines.shard_writer import write_component
from minimax_h3.core.errors import CheckpointError
from minimax_h3.weights.dit_shapes import transformer_shapes
from minimax_h3.weights.key_maps import (
    KeyMap,
    dit_from_diffusers,
    dit_keys,
    unchanged,
    video_vae_keys,
)
from minimax_h3.weights.loader import checked_groups
from minimax_h3.weights.manifest import (
    FL2VA,
    REF2VA,
    CheckpointManifest,
    identify,
    official_partitions,
)
from minimax_h3.weights.payload import read_tensor
from minimax_h3.weights.safetensors_files import ComponentFiles
from minimax_h3.weights.vae_config import audio_vae_arguments, video_vae_arguments

SHARD_BYTES = 5 * 1024**3
_STEM = "diffusion_pytorch_model"
_TRANSFORMER_FOLDERS = {FL2VA: "transformer", REF2VA: "transformer_ref"}
_CLASSES = {
    "text_encoder": ("transformers", "Qwen3VLForConditionalGeneration"),
    "tokenizer": ("transformers", "Qwen2TokenizerFast"),
    "processor": ("transformers", "Qwen3VLProcessor"),
    "vae": ("diffusers", "AutoencoderKLMiniMaxH3"),
    "audio_vae": ("diffusers", "AutoencoderKLMiniMaxH3Audio"),
    "transformer": ("diffusers", "MiniMaxH3Transformer3DModel"),
    "transformer_ref": ("diffusers", "MiniMaxH3Transformer3DModel"),
    "scheduler": ("diffusers", "MiniMaxH3Scheduler"),
    "audio_scheduler": ("diffusers", "MiniMaxH3Scheduler"),
}


def convert_to_diffusers(source: Path, target: Path, shard_bytes: int = SHARD_BYTES) -> Path:
    """Write the diffusers layout of every official partition at `source`.

    Raises:
        CheckpointError: the source is not a complete official checkpoint, or the target is in use.
    """
    if target.exists() and any(target.iterdir()):
        raise CheckpointError(f"{target}: exists and is not empty; name another folder")
    partitions = official_partitions(source)
    if not partitions:
        raise CheckpointError(f"{source}: holds no official partition")
    manifests = [identify(folder, name.lower()) for name, folder in partitions.items()]
    for manifest in manifests:
        _convert_transformer(
            manifest, target / _TRANSFORMER_FOLDERS[manifest.partition], shard_bytes
        )
    # All other components are the same files in both partitions.
    shared = manifests[0]
    _convert_video_vae(shared, target / "vae", shard_bytes)
    _convert_audio_vae(shared, target / "audio_vae", shard_bytes)
    for folder in ("text_encoder", "tokenizer", "processor"):
        shutil.copytree(shared.root / folder, target / folder)
    for folder, shift in (
        ("scheduler", shared.video_flow_shift),
        ("audio_scheduler", shared.audio_flow_shift),
    ):
        _write_config(target / folder / "scheduler_config.json", folder, {"shift": shift})
    _write_index(target)
    return target


def _convert_transformer(manifest: CheckpointManifest, folder: Path, shard_bytes: int) -> None:
    config = manifest.dit_config
    shapes = transformer_shapes(config)
    ours = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    files = manifest.weights["transformer"]
    tensors = _translate(files, dit_keys(manifest), ours, dit_from_diffusers())
    write_component(folder, _STEM, tensors, shard_bytes)
    _write_config(folder / "config.json", "transformer", config.to_diffusers())


def _convert_video_vae(manifest: CheckpointManifest, folder: Path, shard_bytes: int) -> None:
    arguments = video_vae_arguments(manifest)
    tensors = _translate(
        manifest.weights["video_vae"],
        video_vae_keys(manifest),
        video_autoencoder(arguments).state_dict(),
        unchanged(),
    )
    write_component(folder, _STEM, tensors, shard_bytes)
    _write_config(folder / "config.json", "vae", arguments)


def _convert_audio_vae(manifest: CheckpointManifest, folder: Path, shard_bytes: int) -> None:
    arguments = audio_vae_arguments(manifest)
    tensors = _translate(
        manifest.weights["audio_vae"],
        unchanged(),
        audio_autoencoder(arguments).state_dict(),
        unchanged(),
    )
    write_component(folder, _STEM, tensors, shard_bytes)
    _write_config(folder / "config.json", "audio_vae", arguments)


def _translate(
    files: ComponentFiles, to_ours: KeyMap, ours: Mapping[str, Tensor], from_ours: KeyMap
) -> Iterator[tuple[str, Tensor]]:
    """Read, rearrange and yield one group at a time."""
    homes = files.file_of()
    for group in checked_groups(files, to_ours, ours):
        sources = [read_tensor(homes[name], name) for name in group.checkpoint]
        values = dict(zip(group.ours, group.transform.to_ours(sources), strict=True))
        yield from from_ours.from_ours(values).items()


def _write_config(path: Path, component: str, entries: Mapping[str, object]) -> None:
    stamped = {
        "_class_name": _CLASSES[component][1],
        "_diffusers_version": diffusers.__version__,
        **entries,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(json.dumps(stamped, indent=1).encode())


def _write_index(target: Path) -> None:
    index: dict[str, object] = {
        "_class_name": "MiniMaxH3ModularPipeline",
        "_diffusers_version": diffusers.__version__,
        "_blocks_class_name": "MiniMaxH3Blocks",
    }
    for name, (library, class_name) in _CLASSES.items():
        if not (target / name).is_dir():
            continue
        source = {
            "type_hint": [library, class_name],
            "pretrained_model_name_or_path": str(target),
            "subfolder": name,
            "variant": None,
            "revision": None,
        }
        index[name] = [library, class_name, source]
    (target / "modular_model_index.json").write_bytes(json.dumps(index, indent=1).encode())
