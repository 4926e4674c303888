"""How exact the fast paths are: errors against FP32, distance from diffusers, equal tables."""

from functools import partial

import torch

from build_engines.bench.clock import Result, median, milliseconds
from build_engines.bench.subjects import (
    BlockSubject,
    diffusers_transformer,
    random_stream,
    weights_of,
)
from build_engines.bench.workload import Workload
from minimax_h3.attention.base import AttentionBackend
from minimax_h3.attention.sdpa import SdpaAttention
from minimax_h3.dit.adaln import is_block_projection, pin_block_projections_
from minimax_h3.dit.dummy import outlier_channels
from minimax_h3.dit.model import MiniMaxH3Transformer
from minimax_h3.ops.row_ops import REFERENCE, RowOps


def equality(
    workload: Workload,
    model: MiniMaxH3Transformer,
    attention: list[AttentionBackend],
    fused: RowOps,
    exact: RowOps | None,
) -> Result:
    """Compare the first block of `model` with itself in FP32 and with diffusers.

    Args:
        workload: a small one; FP32 attention has to fit.
        model: BF16, one block.
        attention: backends to run the fused block with.
        fused: row operations.
        exact: row operations that round like PyTorch, or None.
    """
    hidden = random_stream(workload.rows, model)
    subject = BlockSubject(model, workload.layout(), hidden)
    reference = SdpaAttention()
    truth = _in_fp32(subject, workload, hidden)
    plain = subject.run(subject.prepared(reference, REFERENCE), hidden.clone())
    result: Result = {"rows": workload.rows, "reference": _errors(plain, truth)}
    for backend in attention:
        out = subject.run(subject.prepared(backend, fused), hidden.clone())
        result[f"{backend.name}+{fused.name}"] = _errors(out, truth)
    if exact is not None:
        theirs = diffusers_transformer(model)
        prepared = subject.prepared(reference, exact)
        arguments = subject.diffusers_arguments(theirs, prepared)
        expected = theirs.transformer_blocks[0](hidden[None], *arguments)[0]
        ours = subject.run(prepared, hidden.clone())
        apart = _ulps(ours, expected)
        result["exact_against_diffusers"] = {
            "within_one_ulp": round(float((apart <= 1).float().mean()), 6),
            "equal": round(float((apart == 0).float().mean()), 6),
        }
    return result


def tables(model: MiniMaxH3Transformer, times: torch.Tensor, repeats: int) -> Result:
    """Whether the AdaLN table is the same from weights on the device and on the host, and how long.

    The projections of `model` stay on the host afterwards.
    """
    device = model.device
    work = partial(model.modulation, times)
    resident, resident_ms = work(), median(milliseconds(work, device, repeats))
    for name, parameter in model.named_parameters():
        if is_block_projection(name):
            parameter.data = parameter.data.cpu()
    if device.type == "cuda":
        pin_block_projections_(model)
    streamed, streamed_ms = work(), median(milliseconds(work, device, repeats))
    same = torch.equal(resident.blocks, streamed.blocks)
    return {
        "times": times.numel(),
        "blocks": len(model.blocks),
        "equal": same and torch.equal(resident.final, streamed.final),
        "gb": round(resident.blocks.nbytes / 1e9, 3),
        "resident_ms": resident_ms,
        "streamed_ms": streamed_ms,
    }


def _in_fp32(subject: BlockSubject, workload: Workload, hidden: torch.Tensor) -> torch.Tensor:
    """The same weights, tables and stream, all arithmetic in FP32."""
    bf16 = subject.model
    config = bf16.config
    wide = MiniMaxH3Transformer(config, torch.float32).to(bf16.device)
    for name, weight in weights_of(bf16).items():
        owner, _, leaf = name.rpartition(".")
        getattr(wide.get_submodule(owner), leaf).copy_(weight)
    other = BlockSubject(wide, workload.layout(), hidden)
    other.tables = type(subject.tables)(*(table.float() for table in subject.tables))
    return other.run(other.prepared(SdpaAttention(), REFERENCE), hidden.float())


def _errors(out: torch.Tensor, truth: torch.Tensor) -> Result:
    """Relative L2 error of everything, and without the huge channels, which hide the others."""
    if not bool(out.isfinite().all()):
        return {"stopped": "output is not finite"}
    width = out.shape[1]
    small = [channel for channel in range(width) if channel not in outlier_channels(width)]
    ordinary = (out[:, small].float(), truth[:, small])
    return {
        "error": _error(out.float(), truth),
        "error_of_ordinary_channels": _error(*ordinary),
    }


def _error(out: torch.Tensor, truth: torch.Tensor) -> float:
    return round(float((out - truth).norm() / truth.norm()), 8)


def _ulps(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Distance in BF16 steps."""

    def ordered(values: torch.Tensor) -> torch.Tensor:
        bits = values.contiguous().view(torch.int16).to(torch.int32)
        return torch.where(bits < 0, -32768 - bits, bits)

    return (ordered(actual) - ordered(expected)).abs()
