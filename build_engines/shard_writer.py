"""Writes a component's tensors as safetensors shards with an index, never holding more than one.

A tensor on meta has no values: its place in the file is a hole, which takes no room on the disk and
reads as zeros.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

_CODES = {torch.float32: "F32", torch.bfloat16: "BF16"}


class ShardWriter:
    """Collects tensors into shards of at most `max_bytes` (a larger tensor gets its own)."""

    def __init__(self, folder: Path, stem: str, max_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._stem = stem
        self._max_bytes = max_bytes
        self._pending: dict[str, Tensor] = {}
        self._pending_bytes = 0
        self._shards: list[list[str]] = []
        self._total_bytes = 0

    def add(self, name: str, tensor: Tensor) -> None:
        """Queue one tensor; writes the shard before it when that is full."""
        if self._pending and self._pending_bytes + tensor.nbytes > self._max_bytes:
            self._flush()
        self._pending[name] = tensor.contiguous()
        self._pending_bytes += tensor.nbytes
        self._total_bytes += tensor.nbytes

    def close(self) -> int:
        """Write what is left, name the files, write the index; returns the number of files."""
        self._flush()
        count = len(self._shards)
        if count == 1:
            self._draft(0).rename(self._folder / f"{self._stem}.safetensors")
            return 1
        weight_map: dict[str, str] = {}
        for number, names in enumerate(self._shards):
            final = f"{self._stem}-{number + 1:05d}-of-{count:05d}.safetensors"
            self._draft(number).rename(self._folder / final)
            weight_map |= dict.fromkeys(names, final)
        index = {"metadata": {"total_size": self._total_bytes}, "weight_map": weight_map}
        path = self._folder / f"{self._stem}.safetensors.index.json"
        path.write_bytes(json.dumps(index, indent=1, sort_keys=True).encode())
        return count

    def _draft(self, number: int) -> Path:
        # The number of shards is known at the end only, and it is part of each name.
        return self._folder / f".shard-{number:05d}"

    def _flush(self) -> None:
        if not self._pending:
            return
        draft = self._draft(len(self._shards))
        if any(tensor.is_meta for tensor in self._pending.values()):
            _save_hollow(self._pending, draft)
        else:
            save_file(self._pending, draft, metadata={"format": "pt"})
        self._shards.append(list(self._pending))
        self._pending, self._pending_bytes = {}, 0


def _save_hollow(tensors: Mapping[str, Tensor], path: Path) -> None:
    """A file with all headers, and the payload of those tensors that have one."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": _CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    start = 8 + len(text)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(start + offset)
        for tensor in tensors.values():
            if not tensor.is_meta:
                file.seek(start)
                file.write(tensor.view(torch.uint8).numpy().tobytes())
            start += tensor.nbytes


def write_component(
    folder: Path, stem: str, tensors: Iterable[tuple[str, Tensor]], max_bytes: int
) -> int:
    """Write all tensors; returns the number of files."""
    writer = ShardWriter(folder, stem, max_bytes)
    for name, tensor in tensors:
        writer.add(name, tensor)
    return writer.close()
