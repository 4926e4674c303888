"""Writes trained autoencoders in the official layout, in 16 bit, and reads them to go on."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from build_engines.shard_writer import write_component
from build_engines.train_tiny import architecture
from minimax_h3.core.errors import CheckpointError
from minimax_h3.weights.key_maps import KeyMap, unchanged, video_vae_from_official

MAX_FILE_BYTES = 16 * 1024**2
_YAML = """\
model_config:
  sr: 32000
  decoder_dim: 128
  audio_channel: 1
  vae_latent_channels: 32
"""


def _video_keys() -> KeyMap:
    vit = architecture.video_source_config()["vit_decoder_kwargs"]
    assert isinstance(vit, dict)
    return video_vae_from_official(int(vit["heads"]), int(vit["heads"]) * int(vit["dim_head"]))


def save_video_vae(module: Any, mean: Sequence[float], std: Sequence[float], folder: Path) -> None:
    """Write `folder/config.json`, `folder/source/config.json` and the weights beside it.

    Args:
        module: the autoencoder.
        mean: of the latents, per channel.
        std: of the latents, per channel.
        folder: `video_vae` of a partition.
    """
    _write_json(folder / "config.json", architecture.video_config(mean, std))
    _write_json(folder / "source" / "config.json", architecture.video_source_config())
    _write_weights(folder / "source", _video_keys().from_ours(_half(module)))


def save_audio_vae(module: Any, mean: Sequence[float], std: Sequence[float], folder: Path) -> None:
    """Write the configuration files and the weights; arguments as `save_video_vae`."""
    _write_json(folder / "config.json", architecture.audio_config(mean, std))
    _write_json(folder / "metadata.json", architecture.audio_metadata())
    (folder / "config.yaml").write_text(_YAML)
    _write_weights(folder, unchanged().from_ours(_half(module)))


def resume_video_vae(module: Any, folder: Path) -> None:
    """Fill a module from what `save_video_vae` wrote."""
    _fill(module, _video_keys(), folder / "source")


def resume_audio_vae(module: Any, folder: Path) -> None:
    """Fill a module from what `save_audio_vae` wrote."""
    _fill(module, unchanged(), folder)


def kept_statistics(folder: Path) -> tuple[list[float], list[float]]:
    """Mean and deviation of the latents, per channel, as an earlier piece wrote them."""
    config = json.loads((folder / "config.json").read_text())
    return config["latents_mean"], config["latents_std"]


def _half(module: Any) -> dict[str, Tensor]:
    """All tensors in fp16, whose eleven bits of precision small weights need; on the CPU."""
    return {name: value.detach().cpu().half() for name, value in module.state_dict().items()}


def _write_weights(folder: Path, tensors: dict[str, Tensor]) -> None:
    write_component(folder, "model", tensors.items(), MAX_FILE_BYTES)
    size = (folder / "model.safetensors").stat().st_size
    if size > MAX_FILE_BYTES:
        raise CheckpointError(f"{folder}: {size} bytes of weights; legal: {MAX_FILE_BYTES}")


def _fill(module: Any, keys: KeyMap, folder: Path) -> None:
    path = folder / "model.safetensors"
    if not path.is_file():
        raise CheckpointError(f"{path}: missing; there is nothing to resume from")
    stored = {name: value.float() for name, value in load_file(path).items()}
    with torch.no_grad():
        module.load_state_dict(keys.to_ours(stored))


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(json.dumps(content, indent=1).encode())
