"""Times of work on a device: events on a GPU, the wall clock elsewhere."""

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

Result = dict[str, Any]


def milliseconds(
    work: Callable[[], object], device: torch.device, repeats: int = 5, warmup: int = 2
) -> list[float]:
    """Time each of `repeats` runs after `warmup` runs that do not count."""
    for _ in range(warmup):
        work()
    if device.type != "cuda":
        return [_wall(work) for _ in range(repeats)]
    marks = [mark(device)]
    for _ in range(repeats):
        work()
        marks.append(mark(device))
    torch.cuda.synchronize(device)
    return intervals(marks)


def mark(device: torch.device) -> Any:
    """A moment, when the device has done what it was given so far."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # has no types
    event.record(torch.cuda.current_stream(device))
    return event


def intervals(marks: list[Any]) -> list[float]:
    """Milliseconds between neighbours; on a GPU they must have passed."""
    return [
        (after - before) * 1e3 if isinstance(before, float) else before.elapsed_time(after)
        for before, after in pairwise(marks)
    ]


def median(values: list[float]) -> float:
    """Median, to a microsecond."""
    return round(statistics.median(values), 3)


def _wall(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3
