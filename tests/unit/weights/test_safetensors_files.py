"""Headers and indexes, against the safetensors library and against broken files."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from minimax_h3.core.errors import CheckpointError
from minimax_h3.weights.payload import read_tensor
from minimax_h3.weights.safetensors_files import read_component, read_file


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    tensors = {
        "a": torch.arange(6.0).reshape(2, 3),
        "b": torch.arange(4).bfloat16(),
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(3.0, dtype=torch.float64),
    }
    save_file(tensors, path, metadata={"format": "pt"})
    return path


def test_header_and_payload_agree_with_the_library(shard: Path) -> None:
    ours = read_file(shard)
    with safe_open(shard, framework="pt") as theirs:
        assert set(ours.tensors) == set(theirs.keys())
        for name in ours.tensors:
            expected = theirs.get_tensor(name)
            read = read_tensor(ours, name)
            assert read.dtype == expected.dtype
            assert read.shape == expected.shape
            assert torch.equal(read, expected)


@pytest.mark.parametrize("kept", [0, 5, 100, -1])
def test_a_truncated_file_is_named(shard: Path, kept: int) -> None:
    content = shard.read_bytes()
    shard.write_bytes(content[:kept])
    with pytest.raises(CheckpointError, match=r"model\.safetensors.*truncated"):
        read_file(shard)


def test_trailing_bytes_are_refused(shard: Path) -> None:
    shard.write_bytes(shard.read_bytes() + b"x")
    with pytest.raises(CheckpointError, match="trailing bytes"):
        read_file(shard)


@pytest.mark.parametrize(
    "header",
    [
        b"not json",
        b"[]",
        b'{"a": 3}',
        b'{"a": {"dtype": "F32", "shape": [2]}}',
        b'{"a": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}',
        b'{"a": {"dtype": "F32", "shape": "2", "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4, 8]}}',
    ],
)
def test_a_corrupt_header_is_refused(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        read_file(path)


def test_a_file_that_shrank_after_its_header_was_read(shard: Path) -> None:
    file = read_file(shard)
    shard.write_bytes(shard.read_bytes()[:-40])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: truncated inside tensor a"):
        read_tensor(file, "a")


@pytest.mark.parametrize("name", ["a", "b", "scalar"])
def test_the_fingerprint_sees_every_tensor(shard: Path, name: str) -> None:
    before = read_file(shard)
    assert read_file(shard).fingerprint == before.fingerprint
    content = bytearray(shard.read_bytes())
    content[before.tensors[name].begin] ^= 1
    shard.write_bytes(bytes(content))
    assert read_file(shard).fingerprint != before.fingerprint


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"missing both model\.safetensors and model\.s"):
        read_component(tmp_path, "model")
    with pytest.raises(CheckpointError, match=r"other\.safetensors: missing"):
        read_file(tmp_path / "other.safetensors")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt"])
def test_pickles_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(CheckpointError, match=f"holds {name}; only safetensors"):
        read_component(tmp_path, "model")


def _shards(folder: Path, weight_map: dict[str, str]) -> None:
    save_file({"a": torch.zeros(1)}, folder / "one.safetensors")
    save_file({"b": torch.zeros(2)}, folder / "two.safetensors")
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_shards_are_read_in_order(tmp_path: Path) -> None:
    _shards(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    files = read_component(tmp_path, "model")
    assert [file.path.name for file in files.files] == ["one.safetensors", "two.safetensors"]
    assert files.tensors["b"].shape == (2,)
    assert files.file_of()["b"].path.name == "two.safetensors"


@pytest.mark.parametrize(
    ("weight_map", "named"),
    [
        ({"a": "one.safetensors", "b": "one.safetensors"}, "b"),
        ({"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"}, "c"),
        ({"a": "one.safetensors", "x": "two.safetensors"}, "b .not in the index"),
        ({"a": "../one.safetensors"}, "../one.safetensors"),
        ({"a": "one.bin"}, "one.bin"),
        ({"a": "three.safetensors"}, "three.safetensors: missing"),
        ({}, "weight_map is absent or empty"),
    ],
)
def test_index_and_shards_must_agree(
    tmp_path: Path, weight_map: dict[str, str], named: str
) -> None:
    _shards(tmp_path, weight_map)
    with pytest.raises(CheckpointError, match=named):
        read_component(tmp_path, "model")


def test_one_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "three.safetensors")
    _shards(tmp_path, {"a": "three.safetensors", "b": "two.safetensors", "c": "one.safetensors"})
    with pytest.raises(CheckpointError, match="tensor a is in"):
        read_component(tmp_path, "model")
