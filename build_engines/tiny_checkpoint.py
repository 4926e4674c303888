"""Writes a tiny random checkpoint with the structure of the official release."""

import json
from pathlib import Path

from build_engines import tiny_configs, tiny_weights
from build_engines.shard_writer import write_component
from build_engines.tiny_configs import Json
from build_engines.tiny_tokenizer import processor_files, tokenizer_files, write_files
from minimax_h3.core.errors import CheckpointError
from minimax_h3.weights.vae_config import (
    official_audio_vae_arguments,
    official_video_vae_arguments,
)

PARTITIONS = ("FL2VA", "Ref2VA")
SHARED = ("tokenizer", "processor", "text_encoder", "video_vae", "audio_vae")
_ONE_FILE = 1 << 40


def write_tiny(target: Path, seed: int, partition: str, canvas: Json | None = None) -> Path:
    """Write `<target>/<partition>`; the bytes depend on the arguments alone.

    Args:
        target: folder of the checkpoint.
        seed: of the weights.
        partition: FL2VA or Ref2VA.
        canvas: a canvas rule to state; None leaves the released one.

    Raises:
        CheckpointError: the partition folder exists and holds something.
    """
    root = _write_transformer(target, seed, partition, canvas)
    write_files(root / "tokenizer", tokenizer_files())
    write_files(root / "processor", processor_files())
    _write_json(root / "text_encoder" / "config.json", tiny_configs.text_encoder())
    write_files(root / "text_encoder", tokenizer_files())
    text_encoder = tiny_weights.text_encoder(seed)
    write_component(root / "text_encoder", "model", text_encoder.items(), 500_000)
    _write_autoencoders(root, seed)
    return root


def write_tiny_pair(target: Path, seed: int, canvas: Json | None = None) -> Path:
    """Write both partitions; what they share is written once and linked by relative paths.

    Args:
        target: folder of the checkpoint.
        seed: of the weights.
        canvas: a canvas rule to state; None leaves the released one.

    Raises:
        CheckpointError: one of the partition folders exists and holds something.
    """
    first, second = PARTITIONS
    write_tiny(target, seed, first, canvas)
    root = _write_transformer(target, seed, second, canvas)
    for folder in SHARED:
        (root / folder).symlink_to(Path("..") / first / folder)
    return target


def _write_transformer(target: Path, seed: int, partition: str, canvas: Json | None) -> Path:
    """What no two partitions share."""
    root = target / partition
    if root.exists() and any(root.iterdir()):
        raise CheckpointError(f"{root}: exists and is not empty; remove it or name another folder")
    _write_json(root / "model_index.json", tiny_configs.model_index(partition, canvas))
    _write_json(root / "transformer" / "config.json", tiny_configs.transformer())
    transformer = tiny_weights.transformer(seed, partition)
    write_component(root / "transformer", "model", transformer.items(), 300_000)
    return root


def _write_autoencoders(root: Path, seed: int) -> None:
    video, audio = root / "video_vae", root / "audio_vae"
    _write_json(video / "config.json", tiny_configs.video_vae())
    _write_json(video / "source" / "config.json", tiny_configs.video_vae_source())
    arguments = official_video_vae_arguments(
        tiny_configs.video_vae(), tiny_configs.video_vae_source(), video
    )
    tensors = tiny_weights.video_vae(seed, arguments)
    write_component(video / "source", "model", tensors.items(), _ONE_FILE)
    _write_json(audio / "config.json", tiny_configs.audio_vae(seed))
    _write_json(audio / "metadata.json", tiny_configs.audio_vae_metadata())
    write_files(audio, {"config.yaml": tiny_configs.AUDIO_VAE_YAML})
    arguments = official_audio_vae_arguments(
        tiny_configs.audio_vae(seed), tiny_configs.audio_vae_metadata(), audio
    )
    tensors = tiny_weights.audio_vae(seed, arguments)
    write_component(audio, "model", tensors.items(), _ONE_FILE)


def _write_json(path: Path, content: Json) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(json.dumps(content, indent=1).encode())
