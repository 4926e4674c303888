"""Whole forwards: a denoising session as the server runs it, and diffusers at the same size."""

import contextlib
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from tqdm import tqdm

from build_engines.bench.clock import Result, intervals, mark, median, milliseconds
from build_engines.bench.subjects import diffusers_transformer
from build_engines.bench.workload import Workload, flops
from minimax_h3.attention.base import AttentionBackend
from minimax_h3.caches.adaln_table import AdaLNTableCache
from minimax_h3.core.errors import H3Error
from minimax_h3.denoise.session import DenoiseSession, DitRuntime, select_euler_step
from minimax_h3.dit.model import MiniMaxH3Transformer, Velocities
from minimax_h3.ops.row_ops import RowOps
from minimax_h3.packing.row_times import class_times, row_times


def session(
    workload: Workload,
    model: MiniMaxH3Transformer,
    attention: AttentionBackend,
    ops: RowOps,
    forwards: int,
) -> Result:
    """Run the first `forwards` steps of a request in one go; nothing waits for the device inside.

    The AdaLN table, the text and the rotary table are made before the clock starts and timed apart.
    """
    device = model.device
    runtime = DitRuntime(model, attention, AdaLNTableCache(), "dummy", ops, select_euler_step(ops))
    _reset_peak(device)
    began = time.perf_counter()
    denoising = DenoiseSession.prepare(runtime, workload.plan, 42, workload.conditioning())
    _finish(device)
    prepare_s = time.perf_counter() - began
    marks = [mark(device)]
    with _no_waiting(device):
        for index in tqdm(range(forwards), unit="forward", mininterval=5):
            denoising.step(index)
            marks.append(mark(device))
    _finish(device)
    result: Result = {
        "rows": workload.rows,
        "frames": workload.frames,
        "forwards": forwards,
        "attention": attention.name,
        "row_ops": ops.name,
        "prepare_s": round(prepare_s, 3),
        "peak_gb": _peak_gb(device),
    }
    try:
        denoising.latents()
    except H3Error as error:
        return {**result, "stopped": str(error)}
    times = intervals(marks)
    layers = workload.config.num_layers
    middle = statistics.median(times)
    operations = layers * sum(flops(workload.config, workload.rows))
    return {
        **result,
        "total_s": round(sum(times) / 1e3, 3),
        "forward_ms": round(middle, 1),
        "first_ms": round(times[0], 1),
        "last_ms": round(times[-1], 1),
        "layer_ms": round(middle / layers, 3),
        "tflops": round(operations / middle / 1e9, 1),
    }


def compare(
    workload: Workload,
    model: MiniMaxH3Transformer,
    attention: list[AttentionBackend],
    ops: RowOps,
    against: list[str],
    forwards: int,
) -> Result:
    """The same forward `forwards` times by each subject, on the same weights and inputs."""
    inputs = _inputs(workload, model)
    result: Result = {"rows": workload.rows, "forwards": forwards, "ours": {}, "theirs": {}}
    expected: Velocities | None = None
    for backend in attention:
        run = _ours(workload, model, backend, ops, inputs)
        entry, velocities = _timed(run, expected, model.device, forwards)
        expected = velocities if expected is None else expected
        result["ours"][backend.name] = entry
    if not against:
        return result
    theirs: Any = diffusers_transformer(model)
    for name in against:
        if name == "compiled":
            theirs.compile_repeated_blocks(fullgraph=True, dynamic=False)
        entry, _ = _timed(
            _diffusers(workload, theirs, model, inputs), expected, model.device, forwards
        )
        result["theirs"][name] = entry
    return result


def _inputs(
    workload: Workload, model: MiniMaxH3Transformer
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    layout, config = workload.layout(), workload.config
    generator = torch.Generator().manual_seed(7)
    video = torch.randn(layout.video_indices.numel(), config.video_row_width, generator=generator)
    audio = torch.randn(layout.audio_indices.numel(), config.audio_channels, generator=generator)
    video[::997] *= 20
    text = workload.conditioning().prompt_embeds
    return video.to(model.device), audio.to(model.device), text.to(model.device, model.dtype)


def _ours(
    workload: Workload,
    model: MiniMaxH3Transformer,
    attention: AttentionBackend,
    ops: RowOps,
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> Any:
    layout = workload.layout()
    times = row_times(layout, class_times(0.3, 0.6))
    bounds = (0, layout.num_rows)
    prepared = model.prepare(inputs[2], layout, times.index, bounds, attention, ops)
    every = torch.arange(times.times.numel(), device=model.device)
    tables = model.modulation(times.times).at(every)
    return lambda: model.step(inputs[0], inputs[1], prepared, tables)


def _diffusers(
    workload: Workload,
    theirs: Any,
    model: MiniMaxH3Transformer,
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> Any:
    layout, device = workload.layout(), model.device
    times = row_times(layout, class_times(0.3, 0.6))
    arguments = {
        "hidden_states": inputs[0][None],
        "audio_hidden_states": inputs[1][None],
        "encoder_hidden_states": inputs[2][None],
        "timestep": times.times.to(device),
        "timestep_indices": times.index.to(device),
        "token_tags": layout.token_tags.to(device),
        "position_ids": layout.positions.to(device),
        "video_indices": layout.video_indices.to(device),
        "audio_indices": layout.audio_indices.to(device),
        "text_indices": layout.text_indices.to(device),
        "return_dict": False,
    }
    return lambda: Velocities(*(each[0] for each in theirs(**arguments)))


def _timed(
    run: Any, expected: Velocities | None, device: torch.device, forwards: int
) -> tuple[Result, Velocities]:
    began = time.perf_counter()
    out: Velocities = run()
    _finish(device)
    entry: Result = {"first_s": round(time.perf_counter() - began, 2)}
    for name, ours in out._asdict().items():
        if not bool(ours.isfinite().all()):
            return {**entry, "stopped": f"{name} velocities are not finite"}, out
        if expected is not None:
            other = getattr(expected, name)
            entry[f"{name}_difference"] = round(float((ours - other).norm() / other.norm()), 6)
    times = milliseconds(run, device, repeats=forwards, warmup=0)
    return {**entry, "forward_ms": median(times), "total_s": round(sum(times) / 1e3, 3)}, out


@contextlib.contextmanager
def _no_waiting(device: torch.device) -> Iterator[None]:
    """Any operation that waits for a GPU raises inside."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak_gb(device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    return round(torch.cuda.max_memory_allocated(device) / 1e9, 2)
