"""One block: ours, ours without fusion, diffusers native and compiled, beside the ceiling."""

from typing import Any

import torch

from build_engines.bench.clock import Result, median, milliseconds
from build_engines.bench.profile import kernels
from build_engines.bench.subjects import BlockSubject, diffusers_transformer, random_stream
from build_engines.bench.workload import Workload, flops
from minimax_h3.attention.base import AttentionBackend
from minimax_h3.dit.model import MiniMaxH3Transformer, PreparedSequence
from minimax_h3.ops.row_ops import RowOps

SAME_BLOCK = 5e-2  # relative L2 between two bf16 implementations of one block


def block(
    workload: Workload,
    model: MiniMaxH3Transformer,
    attention: AttentionBackend,
    bundles: list[RowOps],
    against: list[str],
    repeats: int,
    profiled: bool = False,
) -> Result:
    """Time the first block of `model` at one size.

    Args:
        workload: the size.
        model: with at least one block.
        attention: our backend.
        bundles: our row operations, the first is the one that counts.
        against: of `diffusers`, `compiled`.
        repeats: runs of each.
        profiled: also say what each kernel of ours takes, from further runs on a GPU.
    """
    rows = workload.rows
    hidden = random_stream(rows, model)
    subject = BlockSubject(model, workload.layout(), hidden)
    result: Result = {"rows": rows, "attention": attention.name, "ours": {}, "theirs": {}}
    expected: torch.Tensor | None = None
    for ops in bundles:
        prepared = subject.prepared(attention, ops)
        out = subject.run(prepared, hidden.clone())
        expected = out if expected is None else expected
        entry = _judge(out, expected)
        if "stopped" not in entry:
            entry |= _time_ours(subject, prepared, workload, repeats, profiled)
        result["ours"][ops.name] = entry
    assert expected is not None
    if against:
        theirs = diffusers_transformer(model)
        arguments = subject.diffusers_arguments(theirs, prepared)
        for name in against:
            result["theirs"][name] = _theirs(
                name, theirs, hidden, arguments, expected, workload, repeats
            )
    return result


def _time_ours(
    subject: BlockSubject,
    prepared: PreparedSequence,
    workload: Workload,
    repeats: int,
    profiled: bool,
) -> Result:
    stream, normed = subject.hidden.clone(), subject.hidden.clone()

    def work() -> None:
        subject.step(prepared, stream, normed)

    ms = median(milliseconds(work, stream.device, repeats))
    result: Result = {"ms": ms, "tflops": _tflops(workload, ms)}
    return result | ({"profiled": kernels(work)} if profiled else {})


def _theirs(
    name: str,
    theirs: Any,
    hidden: torch.Tensor,
    arguments: tuple[Any, ...],
    expected: torch.Tensor,
    workload: Workload,
    repeats: int,
) -> Result:
    module = theirs.transformer_blocks[0]
    run = torch.compile(module, fullgraph=True, dynamic=False) if name == "compiled" else module
    entry = _judge(run(hidden[None], *arguments)[0], expected)
    if "stopped" not in entry:
        ms = median(milliseconds(lambda: run(hidden[None], *arguments), hidden.device, repeats))
        entry |= {"ms": ms, "tflops": _tflops(workload, ms)}
    return entry


def _judge(out: torch.Tensor, expected: torch.Tensor) -> Result:
    """Relative difference from the first subject; wrong or non-finite output stops this one."""
    if not bool(out.isfinite().all()):
        return {"stopped": "output is not finite"}
    difference = float((out.float() - expected.float()).norm() / expected.float().norm())
    if difference > SAME_BLOCK:
        return {"stopped": f"differs from the first subject by {difference:.3g}"}
    return {"difference": round(difference, 6)}


def _tflops(workload: Workload, ms: float) -> float:
    return round(sum(flops(workload.config, workload.rows)) / ms / 1e9, 1)
