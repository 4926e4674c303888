"""The whole transformer on the GPU: fused against plain, AdaLN from the host, no waiting."""

from dataclasses import replace

import pytest
import torch
from oracles.diffusers_dit import random_inputs, random_transformer, small_layout

from build_engines.bench.equality import equality, tables
from build_engines.bench.workload import SMALL, Workload
from minimax_h3.attention.base import select
from minimax_h3.dit.dummy import dummy_transformer
from minimax_h3.dit.model import MiniMaxH3Transformer
from minimax_h3.ops.row_ops import REFERENCE, RowOps, select_row_ops
from minimax_h3.packing.row_times import class_times, row_times, schedule_times
from minimax_h3.schedules.sigma import SigmaSchedule
from minimax_h3.weights.dit_config import DiTConfig

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

GPU = torch.device("cuda", 0)
ERROR_RATIO, ULP_SHARE = 1.2, 0.999


def test_fused_forward_is_as_close_to_fp32_as_the_plain_one() -> None:
    layout = small_layout(("first", "last"), text_rows=9)
    wide = random_transformer(SMALL).to(GPU)
    model = random_transformer(SMALL).cast_(torch.bfloat16).to(GPU)
    inputs = [tensor.to(GPU) for tensor in random_inputs(SMALL, layout)]
    times = row_times(layout, class_times(0.3, 0.6))
    bounds = (0, layout.num_rows)

    def velocities(which: MiniMaxH3Transformer, ops: RowOps, attention: str) -> list[torch.Tensor]:
        backend = select(attention, GPU, which.dtype, SMALL.head_dim).backend
        with torch.inference_mode():
            prepared = which.prepare(inputs[2], layout, times.index, bounds, backend, ops)
            every = torch.arange(times.times.numel(), device=GPU)
            table = which.modulation(times.times).at(every)
            return list(which.step(inputs[0], inputs[1], prepared, table))

    fused = select_row_ops("fused", GPU).row_ops
    truth = velocities(wide, REFERENCE, "sdpa")
    plain = velocities(model, REFERENCE, "sdpa")
    ours = velocities(model, fused, "auto")
    for actual, reference, exactly in zip(ours, plain, truth, strict=True):
        error, allowed = ((x - exactly).norm() / exactly.norm() for x in (actual, reference))
        assert error <= ERROR_RATIO * allowed, (float(error), float(allowed))


@pytest.mark.parametrize("model", ["small", "released_on_small_canvas"])
def test_block_equality(model: str) -> None:
    """The required bounds, on a block of random weights with channels of 500."""
    load = Workload(model, 124, 64)
    config_model = dummy_transformer(_one_block(load), GPU, torch.bfloat16, resident_adaln=True)
    fused, exact = (select_row_ops(name, GPU).row_ops for name in ("fused", "fused_exact"))
    backends = [select(name, GPU, torch.bfloat16, 128).backend for name in ("auto", "cudnn")]
    with torch.inference_mode():
        found = equality(load, config_model, backends, fused, exact)
    for backend in backends:
        for kind, allowed in found["reference"].items():
            assert found[f"{backend.name}+fused"][kind] <= ERROR_RATIO * allowed, found
    assert found["exact_against_diffusers"]["within_one_ulp"] >= ULP_SHARE, found


def test_adaln_table_from_the_host_is_bitwise_the_resident_one() -> None:
    load = Workload("released_on_small_canvas", 124, 64)
    model = dummy_transformer(_one_block(load), GPU, torch.bfloat16, resident_adaln=True)
    schedules = [SigmaSchedule.build(50, shift).times for shift in (12.0, 3.0)]
    times = schedule_times(load.layout(), *schedules).times
    with torch.inference_mode():
        found = tables(model, times, repeats=1)
    assert found["equal"]
    assert found["times"] == 97


def _one_block(load: Workload) -> DiTConfig:
    return replace(load.config, num_layers=1)
