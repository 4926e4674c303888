"""Work that a stage does once while it loads: its model is ready when the shapes have run."""

import time
from collections.abc import Callable

import torch

from minimax_h3.core.plan import Plan
from minimax_h3.core.warm_up import warm_up_plans
from minimax_h3.stages.base import StageContext
from minimax_h3.stages.torch_device import Placement


def warm_up(context: StageContext, placement: Placement, work: Callable[[Plan], object]) -> None:
    """Run `work` on every stated shape; kernels compile and libraries choose theirs meanwhile.

    Args:
        context: of the stage.
        placement: where the stage computes.
        work: what a request of this plan makes the stage compute.
    """
    for plan in warm_up_plans(context.config.warm_up):
        began = time.perf_counter()
        work(plan)
        if placement.device.type == "cuda":
            torch.cuda.synchronize(placement.device)
        context.log.info(
            "warm-up %dx%dx%d: %.2f s",
            plan.width,
            plan.height,
            plan.num_frames,
            time.perf_counter() - began,
        )
