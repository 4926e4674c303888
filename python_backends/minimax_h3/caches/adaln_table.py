"""AdaLN tables of whole schedules, kept for the next request that uses the same times.

The table is exact: a step looks up what its own projections would give. An entry is found by the
bytes of its times, the weights and the numeric environment, never by a float comparison, and a hit
is the very tensor of the miss.
"""

import threading
from collections import OrderedDict

import torch

from minimax_h3.dit.adaln import ModulationTable
from minimax_h3.dit.model import MiniMaxH3Transformer

DEFAULT_CAPACITY = 2
"""Schedules kept; at the released size one of 49 forwards takes 0.94 GB in BF16."""


class AdaLNTableCache:
    """Least-recently-used tables of one process; safe to share between threads.

    Args:
        capacity: schedules kept, 1 or more.
    """

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        assert capacity >= 1
        self._capacity = capacity
        self._tables: OrderedDict[tuple[object, ...], ModulationTable] = OrderedDict()
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    def table(
        self, model: MiniMaxH3Transformer, times: torch.Tensor, weights_token: str
    ) -> ModulationTable:
        """The table of a schedule, built on the first call.

        Args:
            model: whose projections to run.
            times: fp32 [M] on the CPU, the schedule's distinct times.
            weights_token: names the weights' content (checkpoint, adapters and their scales); it
                must change whenever they do.
        """
        key = (times.numpy().tobytes(), weights_token, *_numeric_environment(model))
        with self._lock:
            table = self._tables.get(key)
            if table is not None:
                self.hits += 1
                self._tables.move_to_end(key)
                return table
            self.misses += 1
            while len(self._tables) >= self._capacity:  # room first: two tables may not fit
                self._tables.popitem(last=False)
            table = model.modulation(times)
            self._tables[key] = table
            return table

    def clear(self) -> None:
        """Forget all tables, after a change of weights."""
        with self._lock:
            self._tables.clear()

    def __len__(self) -> int:
        return len(self._tables)


def _numeric_environment(model: MiniMaxH3Transformer) -> tuple[object, ...]:
    """Everything besides times and weights that can move a bit of the table."""
    kind = model.device.type
    autocast = torch.is_autocast_enabled(kind)
    return (
        model.dtype,
        model.device,
        torch.get_float32_matmul_precision(),
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        autocast and torch.get_autocast_dtype(kind),
    )
