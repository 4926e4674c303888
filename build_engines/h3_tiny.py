"""Puts the trained parts together: `checkpoints/h3-tiny/` in the official layout, with its card."""

import json
import shutil
from pathlib import Path

from build_engines import tiny_configs
from build_engines.model_card import model_card
from build_engines.tiny_checkpoint import PARTITIONS, SHARED
from build_engines.tiny_tokenizer import tokenizer_files, write_files
from build_engines.train_tiny import model_configs
from minimax_h3.core.errors import CheckpointError
from minimax_h3.weights.manifest import identify

CARD = "README.md"
_TRANSFORMERS = {"FL2VA": "transformer", "Ref2VA": "transformer_ref"}
_TRAINED = ("text_encoder", "video_vae", "audio_vae")
_LEFT_OUT = ("curves.json", "curves.png")


def assemble(parts: Path, target: Path, reports: Path | None = None) -> Path:
    """Write both partitions; what they share is written once and linked by relative paths.

    Args:
        parts: folder with `text_encoder`, `video_vae`, `audio_vae`, `transformer` and, unless only
            the first partition is trained, `transformer_ref`.
        target: gets `FL2VA/`, `Ref2VA/` and the model card.
        reports: folder of JSON reports that the card is filled from; `parts` if None.

    Returns:
        The target.

    Raises:
        CheckpointError: a part is missing, the target holds something, the whole is too large, or
            the loader's first look refuses it.
    """
    if target.exists() and any(target.iterdir()):
        raise CheckpointError(
            f"{target}: exists and is not empty; remove it or name another folder"
        )
    for name in (*_TRAINED, _TRANSFORMERS[PARTITIONS[0]]):
        if not (parts / name).is_dir():
            raise CheckpointError(f"{parts / name}: missing; train it first")
    first, second = PARTITIONS
    _write_partition(parts, target, first)
    for name in _TRAINED:
        _copy(parts / name, target / first / name)
    write_files(target / first / "tokenizer", tokenizer_files())
    write_files(target / first / "processor", model_configs.processor())
    write_files(target / first / "text_encoder", tokenizer_files())
    if (parts / _TRANSFORMERS[second]).is_dir():
        _write_partition(parts, target, second)
        for folder in SHARED:
            (target / second / folder).symlink_to(Path("..") / first / folder)
    (target / CARD).write_text(model_card(target, read_reports(reports or parts)))
    _check(target)
    return target


def part_sizes(folder: Path) -> dict[str, int]:
    """Bytes of weights of each folder directly below, links left out."""
    return {
        child.name: sum(path.stat().st_size for path in child.rglob("*.safetensors"))
        for child in sorted(folder.iterdir())
        if child.is_dir() and not child.is_symlink()
    }


def read_reports(folder: Path) -> dict[str, object]:
    """Content of `NAME.json` files directly in a folder, by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def _write_partition(parts: Path, target: Path, partition: str) -> None:
    root = target / partition
    root.mkdir(parents=True)
    content = tiny_configs.model_index(partition, model_configs.CANVAS, model_configs.SIGMA_SHIFTS)
    index = json.dumps(content, indent=1)
    (root / "model_index.json").write_text(index + "\n")
    _copy(parts / _TRANSFORMERS[partition], root / "transformer")


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*_LEFT_OUT))


def _check(target: Path) -> None:
    files = [path for path in target.rglob("*") if path.is_file() and not _is_linked(path, target)]
    size = sum(path.stat().st_size for path in files)
    if size > model_configs.WHOLE_BYTES:
        raise CheckpointError(
            f"{target}: {size} bytes are not legal; legal: up to {model_configs.WHOLE_BYTES}"
        )
    for partition in PARTITIONS:
        if (target / partition).is_dir():
            identify(target, partition.lower())


def _is_linked(path: Path, root: Path) -> bool:
    return any(parent.is_symlink() for parent in path.parents if root in parent.parents)
