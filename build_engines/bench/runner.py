"""Runs what `h3 bench` was asked for."""

import argparse
from dataclasses import replace
from typing import Any

import torch

from build_engines.bench import block as block_bench
from build_engines.bench import equality as equality_bench
from build_engines.bench import forwards as forward_bench
from build_engines.bench.operators import all_backends, operators
from build_engines.bench.report import environment
from build_engines.bench.workload import MODELS, Workload
from minimax_h3.attention.base import AttentionBackend, select
from minimax_h3.core.errors import BackendUnavailableError
from minimax_h3.dit.dummy import dummy_transformer
from minimax_h3.dit.model import MiniMaxH3Transformer
from minimax_h3.ops.row_ops import RowOps, select_row_ops
from minimax_h3.packing.row_times import schedule_times
from minimax_h3.schedules.sigma import SigmaSchedule
from minimax_h3.weights.dit_config import DiTConfig

EQUALITY_MODEL_BLOCKS = 1


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The whole report: arguments, environment, results.

    Raises:
        BackendUnavailableError: what was asked for by name cannot run here.
    """
    device = torch.device(args.device or ("cuda:0" if torch.cuda.is_available() else "cpu"))
    if args.profile and device.type != "cuda":
        raise BackendUnavailableError(f"--profile: {device} has no kernels to time; legal: a GPU")
    report: dict[str, Any] = {
        "what": args.what,
        "arguments": {key: str(value) for key, value in vars(args).items() if key != "json"},
        "environment": environment(device, args.commit),
    }
    with torch.inference_mode():
        report["results"] = _measure(args, device, _dtype(args, device))
    return report


def _measure(args: argparse.Namespace, device: torch.device, dtype: torch.dtype) -> list[Any]:
    loads = [Workload.of(args.model, frames) for frames in args.frames]
    bundles = [select_row_ops(name, device).row_ops for name in args.row_ops]
    if args.what == "operators":
        names = _names(args, device, dtype)
        return [operators(each, device, dtype, names, bundles, args.repeats) for each in loads]
    backends = [
        select(name, device, dtype, MODELS[args.model].head_dim).backend
        for name in _names(args, device, dtype)
    ]
    if args.what == "equality":
        return [_equality(each, device, dtype, backends, bundles, args.repeats) for each in loads]
    layers = 1 if args.what == "block" else args.layers
    model = dummy_transformer(_config(args.model, layers), device, dtype)
    results: list[Any] = []
    for each in loads:
        results += _timed(args, each, model, backends, bundles)
    return results


def _timed(
    args: argparse.Namespace,
    load: Workload,
    model: MiniMaxH3Transformer,
    backends: list[AttentionBackend],
    bundles: list[RowOps],
) -> list[Any]:
    ceiling = _ceiling(args, load, model, backends)
    if args.what == "block":
        return [
            ceiling,
            *(
                _of_ceiling(
                    block_bench.block(
                        load, model, backend, bundles, args.against, args.repeats, args.profile
                    ),
                    ceiling,
                )
                for backend in backends
            ),
        ]
    if args.what == "forward":
        return [
            ceiling,
            forward_bench.compare(load, model, backends, bundles[0], args.against, args.forwards),
        ]
    return [
        ceiling,
        *(
            _of_ceiling(forward_bench.session(load, model, backend, ops, args.forwards), ceiling)
            for backend in backends
            for ops in bundles
        ),
    ]


def _of_ceiling(result: dict[str, Any], ceiling: dict[str, Any]) -> dict[str, Any]:
    """Note beside each time of a block which share of the ceiling's speed it is."""
    limit = ceiling["ceiling"]["ceiling_ms"]
    entries = [*result.get("ours", {}).values(), *result.get("theirs", {}).values(), result]
    for entry in entries:
        ms = entry.get("ms", entry.get("layer_ms"))
        if ms:
            entry["of_ceiling"] = round(limit / ms, 4)
    return result


def _ceiling(
    args: argparse.Namespace,
    load: Workload,
    model: MiniMaxH3Transformer,
    backends: list[AttentionBackend],
) -> dict[str, Any]:
    """What a block would take if it were nothing but its parts, measured in this run."""
    names = [backend.name for backend in backends]
    parts = operators(load, model.device, model.dtype, names, [], args.repeats)
    return {"ceiling": parts}


def _equality(
    load: Workload,
    device: torch.device,
    dtype: torch.dtype,
    backends: list[AttentionBackend],
    bundles: list[RowOps],
    repeats: int,
) -> Any:
    config = _config(load.model, EQUALITY_MODEL_BLOCKS)
    model = dummy_transformer(config, device, dtype, resident_adaln=True)
    exact = next((ops for ops in bundles if ops.name == "fused_exact"), None)
    result = equality_bench.equality(load, model, backends, bundles[0], exact)
    schedules = [SigmaSchedule.build(50, shift).times for shift in (12.0, 3.0)]
    times = schedule_times(load.layout(), *schedules).times
    return {**result, "adaln_table": equality_bench.tables(model, times, repeats)}


def _config(model: str, layers: int | None) -> DiTConfig:
    config = MODELS[model]
    return config if layers is None else replace(config, num_layers=layers)


def _names(args: argparse.Namespace, device: torch.device, dtype: torch.dtype) -> list[str]:
    if args.attention == ["all"]:
        return all_backends()
    chosen = select("auto", device, dtype, MODELS[args.model].head_dim)
    return [chosen.backend.name if name == "auto" else name for name in args.attention]


def _dtype(args: argparse.Namespace, device: torch.device) -> torch.dtype:
    wanted = args.dtype or ("bf16" if device.type == "cuda" else "fp32")
    return {"bf16": torch.bfloat16, "fp32": torch.float32}[wanted]
