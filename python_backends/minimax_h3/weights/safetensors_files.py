"""Safetensors headers and shard indexes, read without torch and without touching the payload."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from minimax_h3.core.errors import CheckpointError
from minimax_h3.weights.random_scales import Scale

ITEM_BYTES = MappingProxyType(
    {
        **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
        **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
        **dict.fromkeys(("U32", "I32", "F32"), 4),
        **dict.fromkeys(("U64", "I64", "F64"), 8),
    }
)
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_SAMPLE_BYTES = 64  # first payload bytes of each tensor that enter the fingerprint


class TensorHeader(NamedTuple):
    """Where one tensor lies: `begin` and `end` are byte offsets in the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def num_bytes(self) -> int:
        """Size of the payload."""
        return self.end - self.begin

    @property
    def num_values(self) -> int:
        """Values in the tensor."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """One file's header.

    Attributes:
        path: the file.
        tensors: header per tensor name, in file order.
        fingerprint: SHA-256 over name, size, header and the first values of each tensor. It tells
            apart files of equal shapes without reading gigabytes.
    """

    path: Path
    tensors: Mapping[str, TensorHeader]
    fingerprint: str


@dataclass(frozen=True, slots=True)
class ComponentFiles:
    """All weight files of one component, in shard order.

    Attributes:
        folder: that holds them.
        files: their headers.
        drawn: only names, shapes and dtypes count: values are drawn at random on this scale, by
            our names, and not read.
    """

    folder: Path
    files: tuple[SafetensorsFile, ...]
    drawn: Scale | None = None

    @property
    def tensors(self) -> dict[str, TensorHeader]:
        """Header per tensor name over all shards."""
        return {name: header for file in self.files for name, header in file.tensors.items()}

    def file_of(self) -> dict[str, SafetensorsFile]:
        """The shard that holds each tensor."""
        return {name: file for file in self.files for name in file.tensors}


def read_json(path: Path) -> dict[str, object]:
    """Read a JSON object.

    Raises:
        CheckpointError: the file is missing, is not JSON, or is not an object.
    """
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: missing") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: holds {type(content).__name__}; legal: a JSON object")
    return content


def read_file(path: Path) -> SafetensorsFile:
    """Read and check the header of one safetensors file.

    Raises:
        CheckpointError: the file is missing, truncated, has trailing bytes, or a header that does
            not describe its payload.
    """
    try:
        size = path.stat().st_size
        with path.open("rb", buffering=0) as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            if size < 8 or header_bytes > min(size - 8, _MAX_HEADER_BYTES):
                raise CheckpointError(
                    f"{path}: truncated or not safetensors ({size} bytes in the file, "
                    f"{header_bytes} in its header field)"
                )
            raw = file.read(header_bytes)
            tensors = _parse_header(path, raw, 8 + header_bytes, size)
            digest = hashlib.sha256(f"{path.name}\0{size}\0".encode() + raw)
            for header in tensors.values():
                file.seek(header.begin)
                digest.update(file.read(min(header.end - header.begin, _SAMPLE_BYTES)))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: missing") from error
    except OSError as error:
        raise CheckpointError(f"{path}: not readable ({error})") from error
    return SafetensorsFile(path, MappingProxyType(tensors), digest.hexdigest())


def _parse_header(path: Path, raw: bytes, start: int, size: int) -> dict[str, TensorHeader]:
    try:
        entries = json.loads(raw)
        entries.pop("__metadata__", None)
        tensors = {name: _parse_entry(path, name, entry) for name, entry in entries.items()}
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: corrupt safetensors header ({error!r})") from error
    position = 0
    for name, header in sorted(tensors.items(), key=lambda item: item[1].begin):
        if header.begin != position:
            raise CheckpointError(f"{path}: tensor {name} starts at {header.begin}, not {position}")
        position = header.end
    if start + position != size:
        state = "truncated" if start + position > size else "trailing bytes"
        raise CheckpointError(
            f"{path}: {state} (its header describes {start + position} bytes, the file has {size})"
        )
    return {
        name: header._replace(begin=start + header.begin, end=start + header.end)
        for name, header in tensors.items()
    }


def _parse_entry(path: Path, name: str, entry: Mapping[str, object]) -> TensorHeader:
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if dtype not in ITEM_BYTES:
        raise CheckpointError(f"{path}: tensor {name} has unknown dtype {dtype!r}")
    if not isinstance(shape, list) or not isinstance(offsets, list):
        raise CheckpointError(f"{path}: tensor {name} has a corrupt header entry")
    header = TensorHeader(str(dtype), tuple(shape), *offsets)
    if header.end - header.begin != math.prod(header.shape) * ITEM_BYTES[header.dtype]:
        raise CheckpointError(
            f"{path}: tensor {name} of shape {list(shape)} and {dtype} takes "
            f"{header.end - header.begin} bytes in the header"
        )
    return header


def read_component(folder: Path, stem: str) -> ComponentFiles:
    """Read the headers of a component: `<stem>.safetensors`, or an index and its shards.

    Raises:
        CheckpointError: files are missing or corrupt, or index and shards disagree.
    """
    index = folder / f"{stem}.safetensors.index.json"
    single = folder / f"{stem}.safetensors"
    if index.is_file():
        return _read_sharded(index)
    if single.is_file():
        return ComponentFiles(folder, (read_file(single),))
    pickles = sorted(path.name for path in folder.glob("*") if path.suffix in _PICKLES)
    if pickles:
        raise CheckpointError(
            f"{folder}: holds {', '.join(pickles[:5])}; only safetensors files are read"
        )
    raise CheckpointError(f"{folder}: missing both {single.name} and {index.name}")


def _read_sharded(index: Path) -> ComponentFiles:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map is absent or empty")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        # An index is outside input: it may not reach beyond its own folder.
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise CheckpointError(f"{index}: {name!r} is not the name of a safetensors shard")
    files = tuple(read_file(index.parent / name) for name in names)
    _check_index(index, weight_map, files)
    return ComponentFiles(index.parent, files)


def _check_index(
    index: Path, weight_map: Mapping[str, object], files: tuple[SafetensorsFile, ...]
) -> None:
    seen: dict[str, str] = {}
    for file in files:
        for tensor in file.tensors:
            if tensor in seen:
                raise CheckpointError(
                    f"{index}: tensor {tensor} is in {seen[tensor]} and in {file.path.name}"
                )
            seen[tensor] = file.path.name
    wrong = [
        f"{tensor} ({weight_map.get(tensor, 'not in the index')} in the index, "
        f"{seen.get(tensor, 'in no shard')} on disk)"
        for tensor in sorted(set(weight_map) | set(seen))
        if weight_map.get(tensor) != seen.get(tensor)
    ]
    if wrong:
        raise CheckpointError(
            f"{index}: {len(wrong)} tensors differ from the shards: {', '.join(wrong[:20])}"
        )
