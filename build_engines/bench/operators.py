"""The parts of a block alone: copy bandwidth, matrix products, attention, fused row operations."""

from collections.abc import Callable
from functools import partial

import torch

from build_engines.bench.clock import Result, median, milliseconds
from build_engines.bench.workload import Workload, flops
from minimax_h3.attention.base import BACKENDS, AttentionBackend, select
from minimax_h3.core.errors import BackendUnavailableError
from minimax_h3.ops.rope import RotaryTable
from minimax_h3.ops.row_ops import RowOps
from minimax_h3.weights.dit_config import DiTConfig

ROW_BYTES_PER_BLOCK = 230e3
"""What fused row operations read and write for each row of a block of the released size."""

LOSSLESS_TOLERANCE = 2e-2  # relative L2 against fp32, gaussian data
E4M3_TOLERANCE = 0.10
SAMPLED_QUERIES = 64


def copy_bandwidth(device: torch.device, repeats: int) -> float:
    """Bytes per second, read and written together, of a copy that no cache holds."""
    size = 2**31 if device.type == "cuda" else 2**26
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / (median(milliseconds(lambda: target.copy_(source), device, repeats)) / 1e3)


def matrix_products(
    config: DiTConfig, rows: int, device: torch.device, dtype: torch.dtype, repeats: int
) -> Result:
    """The four products of a block on random numbers."""
    inner, hidden = config.inner_dim, config.hidden_size
    shapes = {
        "qkv": (hidden, 3 * inner),
        "out": (inner, hidden),
        "fc1": (hidden, 2 * config.ffn_dim),
        "fc2": (config.ffn_dim, hidden),
    }
    times = {}
    for name, (inputs, outputs) in shapes.items():
        activations = torch.randn(rows, inputs, dtype=dtype, device=device)
        weight = torch.randn(outputs, inputs, dtype=dtype, device=device) * inputs**-0.5
        work = partial(torch.nn.functional.linear, activations, weight)
        times[name] = median(milliseconds(work, device, repeats))
    total = sum(times.values())
    return {**times, "total_ms": round(total, 3), "tflops": _tflops(flops(config, rows)[0], total)}


def attention(
    config: DiTConfig,
    rows: int,
    device: torch.device,
    dtype: torch.dtype,
    names: list[str],
    repeats: int,
) -> dict[str, Result]:
    """Every wanted backend on the same gaussian q, k, v; wrong output ends that backend's turn."""
    packed = torch.randn(rows, 3, config.num_heads, config.head_dim, dtype=dtype, device=device)
    q, k, v = packed.unbind(1)
    picked = torch.linspace(0, rows - 1, min(rows, SAMPLED_QUERIES), device=device).long()
    expected = _exact_rows(q[picked], k, v)
    results: dict[str, Result] = {}
    for name in names:
        try:
            backend = select(name, device, dtype, config.head_dim).backend
        except BackendUnavailableError as error:
            results[name] = {"absent": str(error)}
            continue
        results[name] = _one_backend(backend, (q, k, v), picked, expected, repeats)
        if "ms" in results[name]:
            results[name]["tflops"] = _tflops(flops(config, rows)[1], results[name]["ms"])
    return results


def _one_backend(
    backend: AttentionBackend,
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    picked: torch.Tensor,
    expected: torch.Tensor,
    repeats: int,
) -> Result:
    bounds = (0, qkv[0].shape[0])
    out = backend(*qkv, bounds)
    error = float((out[picked].float() - expected).norm() / expected.norm())
    lossless = backend.capabilities.lossless
    result: Result = {"error": round(error, 6), "lossless": lossless}
    if not bool(out.isfinite().all()):
        return {**result, "stopped": "output is not finite"}
    if not error <= (LOSSLESS_TOLERANCE if lossless else E4M3_TOLERANCE):
        return {**result, "stopped": f"relative error {error:.3g} is too large"}
    del out
    result["ms"] = median(milliseconds(lambda: backend(*qkv, bounds), qkv[0].device, repeats))
    return result


def _exact_rows(queries: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of a few queries in FP32, head by head."""
    heads = []
    for head in range(queries.shape[1]):
        scores = queries[:, head].float() @ k[:, head].float().T * queries.shape[2] ** -0.5
        heads.append(scores.softmax(-1) @ v[:, head].float())
    return torch.stack(heads, dim=1)


def row_operations(
    config: DiTConfig,
    rows: int,
    device: torch.device,
    dtype: torch.dtype,
    bundles: list[RowOps],
    repeats: int,
) -> dict[str, Result]:
    """Each row operation of each bundle: milliseconds, and TB/s of the least bytes it can move."""

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=dtype, device=device)

    hidden, branch = draw(rows, config.hidden_size), draw(rows, config.hidden_size)
    tables = [draw(6, config.hidden_size) for _ in range(3)]
    index = (torch.arange(rows, device=device) * 6) // rows
    norm = torch.nn.RMSNorm(config.hidden_size, eps=1e-5, dtype=dtype, device=device)
    head_norm = torch.nn.RMSNorm(config.head_dim, eps=1e-5, dtype=dtype, device=device)
    projected = draw(rows, 3, config.num_heads, config.head_dim)
    rotated = 6 * config.rope_freqs
    rotary = RotaryTable(draw(rows, 1, rotated), draw(rows, 1, rotated))
    gate_value = draw(rows, 2 * config.ffn_dim)
    row = hidden.element_size() * rows
    cases: dict[str, tuple[float, Callable[[RowOps], object]]] = {
        "gate_norm_modulate": (
            4 * config.hidden_size * row,
            lambda ops: ops.gated_norm_modulate_(
                hidden, branch, tables[0], norm, tables[1], tables[2], index
            ),
        ),
        "norm_rotate": (
            4 * config.inner_dim * row,
            lambda ops: ops.query_key_value(projected, head_norm, head_norm, rotary),
        ),
        "swiglu": (3 * config.ffn_dim * row, lambda ops: ops.swiglu(gate_value)),
    }
    results: dict[str, Result] = {}
    for ops in bundles:
        results[ops.name] = {}
        for name, (size, work) in cases.items():
            ms = median(milliseconds(partial(work, ops), device, repeats))
            results[ops.name][name] = {"ms": ms, "tb_s": round(size / ms / 1e9, 3)}
    return results


def operators(
    workload: Workload,
    device: torch.device,
    dtype: torch.dtype,
    names: list[str],
    bundles: list[RowOps],
    repeats: int,
) -> Result:
    """All parts at one size, and the ceiling of a block that they make.

    Raises:
        BackendUnavailableError: no lossless attention among `names` ran.
    """
    config, rows = workload.config, workload.rows
    bandwidth = copy_bandwidth(device, repeats)
    products = matrix_products(config, rows, device, dtype, repeats)
    attended = attention(config, rows, device, dtype, names, repeats)
    row_ops = row_operations(config, rows, device, dtype, bundles, repeats)
    best = min(
        (
            (result["ms"], name)
            for name, result in attended.items()
            if result.get("lossless") and "ms" in result
        ),
        default=None,
    )
    if best is None:
        raise BackendUnavailableError(f"no lossless attention ran: {attended}")
    traffic_ms = 1e3 * ROW_BYTES_PER_BLOCK * config.hidden_size / 5376 * rows / bandwidth
    return {
        "rows": rows,
        "frames": workload.frames,
        "copy_tb_s": round(bandwidth / 1e12, 3),
        "matrix_products": products,
        "attention": attended,
        "row_operations": row_ops,
        "best_attention": best[1],
        "traffic_ms": round(traffic_ms, 3),
        "ceiling_ms": round(products["total_ms"] + best[0] + traffic_ms, 3),
    }


def all_backends() -> list[str]:
    """Every registered name, in the order of preference."""
    return list(BACKENDS)


def _tflops(operations: float, ms: float) -> float:
    return round(operations / ms / 1e9, 1)
