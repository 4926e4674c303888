"""Writes text encoder and transformer in the official layout, in 16 bit, and reads them again."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from build_engines.shard_writer import write_component
from build_engines.train_tiny import model_configs
from build_engines.train_tiny.text_model import TextModel
from build_engines.train_tiny.vae_files import MAX_FILE_BYTES
from minimax_h3.core.errors import CheckpointError
from minimax_h3.dit.model import MiniMaxH3Transformer
from minimax_h3.weights.key_maps import dit_from_official

TEXT, TRANSFORMER = "text_encoder", "transformer"
_PREFIX = "model."
_LAYERS = "language_model.layers."


def save_text(text: TextModel, folder: Path) -> None:
    """Write `folder/config.json` and 50 layers: those that were trained, then ones that pass on.

    A layer whose output projections are zero adds nothing to the stream, so the features are those
    of the trained layers, bit by bit.
    """
    _write_json(folder / "config.json", model_configs.text_encoder())
    trained = {name: value.detach().cpu() for name, value in text.model.state_dict().items()}
    tensors = {_PREFIX + name: value.bfloat16() for name, value in trained.items()}
    last = f"{_LAYERS}{model_configs.WORKING_LAYERS - 1}."
    for name, value in trained.items():
        if not name.startswith(last):
            continue
        for layer in range(model_configs.WORKING_LAYERS, model_configs.TEXT_LAYERS):
            passing = torch.ones_like(value) if "norm" in name else torch.zeros_like(value)
            tensors[name.replace(last, f"{_PREFIX}{_LAYERS}{layer}.")] = passing.bfloat16()
    write_component(folder, "model", tensors.items(), MAX_FILE_BYTES)


def save_transformer(model: MiniMaxH3Transformer, folder: Path) -> None:
    """Write `folder/config.json` and the weights, all in bf16."""
    _write_json(folder / "config.json", model_configs.transformer())
    ours = {name: value.detach().cpu().bfloat16() for name, value in model.state_dict().items()}
    tensors = dit_from_official(model_configs.DIT).from_ours(ours)
    write_component(folder, "model", tensors.items(), MAX_FILE_BYTES)


def resume_text(text: TextModel, folder: Path) -> None:
    """Fill the working layers from what `save_text` wrote.

    Raises:
        CheckpointError: there is nothing to read.
    """
    stored = {name.removeprefix(_PREFIX): value for name, value in _read(folder).items()}
    wanted = text.model.state_dict()
    text.model.load_state_dict({name: stored[name].float() for name in wanted})


def resume_transformer(model: MiniMaxH3Transformer, folder: Path) -> None:
    """Fill a transformer from what `save_transformer` wrote.

    Raises:
        CheckpointError: there is nothing to read.
    """
    ours = dit_from_official(model_configs.DIT).to_ours(_read(folder))
    model.load_state_dict({name: value.float() for name, value in ours.items()})


def _read(folder: Path) -> dict[str, Tensor]:
    path = folder / "model.safetensors"
    if not path.is_file():
        raise CheckpointError(f"{path}: missing; there is nothing to resume from")
    return load_file(path)


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(json.dumps(content, indent=1).encode())
