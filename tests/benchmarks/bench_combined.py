"""What a second DiT costs: memory of a combined server minus that of one with a single DiT.

Run: python tests/benchmarks/bench_combined.py CHECKPOINT [--json FILE]
CHECKPOINT is an official layout with both partitions. Its transformers are replaced by random ones
of 138 M parameters, so that weights outweigh the process around them. Both servers are measured
before any request.
"""

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import psutil
import torch

from build_engines import tiny_configs, tiny_weights
from build_engines.shard_writer import write_component
from minimax_h3.core.config import StageConfig
from minimax_h3.serve.installation import STUB
from minimax_h3.serve.server_process import ServerProcess
from minimax_h3.serve.settings import ServeSettings
from minimax_h3.weights.manifest import identify, official_partitions

ROOT = Path(__file__).resolve().parents[2]
LARGE = {"hidden_size": 768, "num_layers": 10, "num_heads": 8, "ffn_dim": 2304, "time_out_dim": 384}


def memory(checkpoint: Path, folder: Path, task_type: str) -> dict[str, int]:
    """Bytes that the processes of each model have for themselves, just after the start."""
    settings = ServeSettings(
        stage=StageConfig(checkpoint_dir=str(checkpoint), task_type=task_type, device="cpu"),
        run_dir=folder / "run",
        http_port=0,
        grpc_port=0,
        metrics_port=0,
    )
    used: dict[str, int] = {}
    with ServerProcess(settings) as server:
        for child in psutil.Process(server.pid).children(recursive=True):
            words = child.cmdline()
            if words and Path(words[0]).name == STUB:
                model = Path(words[1]).parents[1].name
                used[model] = used.get(model, 0) + child.memory_full_info().uss
        server.kill()
    return used


def with_large_transformers(source: Path, target: Path) -> Path:
    """A copy of the checkpoint that shares everything but two larger transformers."""
    shutil.copytree(source, target, symlinks=True)
    tiny_configs.DIT = replace(tiny_configs.DIT, **LARGE)
    for partition, root in official_partitions(target).items():
        folder = root / "transformer"
        shutil.rmtree(folder)
        write_component(folder, "model", tiny_weights.transformer(0, partition).items(), 1 << 30)
        (folder / "config.json").write_text(json.dumps(tiny_configs.transformer()))
    return target


def measure(source: Path, folder: Path) -> dict[str, object]:
    """Start one server after the other."""
    checkpoint = with_large_transformers(source, folder / "checkpoint")
    combined, single = (memory(checkpoint, folder, each) for each in ("combined", "fl2va"))
    extra = sum(combined.values()) - sum(single.values())
    headers = identify(checkpoint, "ref2va").weights["transformer"].tensors.values()
    return {
        "combined_bytes": sum(combined.values()),
        "single_bytes": sum(single.values()),
        "extra_bytes": extra,
        "one_dit_process_bytes": single["dit_fl2va"],
        "one_dit_weight_bytes": sum(4 * torch.Size(header.shape).numel() for header in headers),
        "extra_over_one_dit": round(extra / single["dit_fl2va"], 4),
        "by_model": {"combined": combined, "single": single},
    }


def main() -> None:
    """Print the figures, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        figures = {
            "commit": commit.stdout.strip(),
            "cpu": platform.processor() or platform.machine(),
            "versions": {"torch": version("torch")},
            **measure(arguments.checkpoint.resolve(), Path(folder)),
        }
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
