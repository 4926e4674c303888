"""Time of each kernel inside a piece of work, from a run that is not the timed one."""

from collections import defaultdict
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from build_engines.bench.clock import Result

NAME_WIDTH = 60


def kernels(work: Callable[[], object], runs: int = 3) -> Result:
    """Milliseconds of every kernel in one run of `work`, slowest first, and their sum."""
    work()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(runs):
            work()
        torch.cuda.synchronize()
    spent: dict[str, float] = defaultdict(float)
    for event in recorded.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            spent[event.name[:NAME_WIDTH]] += event.device_time / 1e3 / runs
    slowest = sorted(spent.items(), key=lambda item: -item[1])
    return {
        "sum_ms": round(sum(spent.values()), 3),
        "kernels": {name: round(ms, 3) for name, ms in slowest},
    }
