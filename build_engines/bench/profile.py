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
    for entry in recorded.key_averages():
        if entry.self_device_time_total > 0:
            spent[entry.key[:NAME_WIDTH]] += entry.self_device_time_total / 1e3 / runs
    slowest = sorted(spent.items(), key=lambda item: -item[1])
    return {
        "sum_ms": round(sum(spent.values()), 3),
        "kernels": {name: round(ms, 3) for name, ms in slowest},
    }
