"""Payloads arrive whole through slots of any size, and the host never holds a checkpoint twice."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from minimax_h3.core.errors import CheckpointError
from minimax_h3.weights.key_maps import unchanged
from minimax_h3.weights.loader import build_on_meta, load_weights
from minimax_h3.weights.manifest import identify
from minimax_h3.weights.payload import PayloadReader, read_tensor
from minimax_h3.weights.random_scales import transformer_scale
from minimax_h3.weights.safetensors_files import read_component, read_file

CPU = torch.device("cpu")
SHARDS, SHARD_BYTES = 8, 32 * 1024**2

# A process of its own: the peak is the process's, and other tests must not be in it.
MEASURE = """
import json, sys, torch
from pathlib import Path
from torch import nn
from minimax_h3.weights.key_maps import unchanged
from minimax_h3.weights.loader import build_on_meta, load_weights
from minimax_h3.weights.safetensors_files import read_component

def peak_bytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])

torch.set_num_threads(1)
rows, shards, dtype = int(sys.argv[2]), int(sys.argv[3]), getattr(torch, sys.argv[4])
layers = lambda: nn.ModuleList(nn.Linear(1024, rows, bias=False) for _ in range(shards))
module = build_on_meta(layers)
files = read_component(Path(sys.argv[1]), "model")
torch.ones(1024, 1024).to(dtype).float()  # what torch itself takes at first use
before = peak_bytes()
report = load_weights(module, files, unchanged(), device=torch.device("cpu"),
                      dtype_of=lambda name: dtype)
print(json.dumps({"grown": peak_bytes() - before, "loaded": report.loaded_bytes}))
"""


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight shards of one FP32 matrix each, 256 MiB in all."""
    folder = tmp_path_factory.mktemp("sharded")
    rows = SHARD_BYTES // 4 // 1024
    where = {}
    for number in range(SHARDS):
        name = f"model-{number + 1:05d}-of-{SHARDS:05d}.safetensors"
        save_file({f"{number}.weight": torch.full((rows, 1024), float(number))}, folder / name)
        where[f"{number}.weight"] = name
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where}))
    return folder


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_peak_is_the_module_and_less_than_two_shards(sharded: Path, dtype: str) -> None:
    words = [str(sharded), str(SHARD_BYTES // 4 // 1024), str(SHARDS), dtype]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *words], capture_output=True, text=True, check=True
    )
    measured = json.loads(done.stdout)
    assert measured["loaded"] == SHARDS * SHARD_BYTES // (1 if dtype == "float32" else 2)
    assert measured["grown"] < measured["loaded"] + 1.5 * SHARD_BYTES


def test_progress_names_bytes_and_rate(sharded: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    rows = SHARD_BYTES // 4 // 1024
    module = build_on_meta(
        lambda: nn.ModuleList(nn.Linear(1024, rows, bias=False) for _ in range(SHARDS))
    )
    files = read_component(sharded, "model")
    load_weights(module, files, unchanged(), device=CPU, dtype_of=lambda name: torch.float32)
    lines = [record.getMessage() for record in caplog.records if "file" in record.getMessage()]
    assert len(lines) == SHARDS
    assert f"file {SHARDS} of {SHARDS}, 0.27 of 0.27 GB" in lines[-1]
    assert lines[-1].endswith(" GB/s")
    assert [float(layer.weight[5, 7]) for layer in module] == list(range(SHARDS))


@pytest.mark.parametrize("slot_bytes", [7, 64, 1 << 20])
def test_slots_of_any_size_give_the_same_bits(tmp_path: Path, slot_bytes: int) -> None:
    expected = {
        "a": torch.arange(1000, dtype=torch.float32).reshape(10, 100),
        "b": torch.randn(33).bfloat16(),
        "empty": torch.zeros(0, 4),
    }
    save_file(expected, tmp_path / "model.safetensors")
    file = read_file(tmp_path / "model.safetensors")
    with PayloadReader(CPU, slot_bytes) as reader:
        for name, tensor in expected.items():
            assert torch.equal(reader.through_slots(file, name), tensor)
            assert torch.equal(reader.read(file, name, CPU), tensor)


def test_a_file_cut_while_it_is_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(1000)}, path)
    file = read_file(path)
    path.write_bytes(path.read_bytes()[:-8])
    for slot_bytes in (64, 1 << 20):
        with (
            PayloadReader(CPU, slot_bytes) as reader,
            pytest.raises(CheckpointError, match="truncated inside tensor a"),
        ):
            reader.through_slots(file, "a")
    with pytest.raises(CheckpointError, match="truncated inside tensor a"):
        read_tensor(file, "a")


def test_drawn_weights_are_compared_but_not_read(tmp_path: Path) -> None:
    save_file({"weight": torch.full((64, 32), torch.nan)}, tmp_path / "model.safetensors")
    read = read_component(tmp_path, "model")
    files = replace(read, drawn=transformer_scale)

    def load(outputs: int) -> nn.Module:
        module = build_on_meta(lambda: nn.Linear(32, outputs, bias=False))
        load_weights(module, files, unchanged(), device=CPU, dtype_of=lambda name: torch.float32)
        return module

    first, second = load(64), load(64)
    assert torch.equal(first.weight, second.weight)
    assert first.weight.isfinite().all()
    assert abs(float(first.weight.std()) * 32**0.5 - 1) < 0.1
    with pytest.raises(CheckpointError, match="1 misshaped: weight"):
        load(63)


def test_a_drawn_checkpoint_says_so_in_its_digest(tiny_checkpoint: Path) -> None:
    real = identify(tiny_checkpoint, "fl2va")
    drawn = identify(tiny_checkpoint, "fl2va", drawn=True)
    assert drawn.digest == f"dummy-{real.digest}"
    assert all(files.drawn is not None for files in drawn.weights.values())
    assert all(files.drawn is None for files in real.weights.values())
