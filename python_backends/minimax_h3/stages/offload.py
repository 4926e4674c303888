"""Weights that are on the GPU only while their model works, for a GPU that cannot hold all at once.

Each such model keeps a copy of its weights in pinned host memory. When it is to work it waits for
its turn, brings the weights over and keeps them until another model wants the turn: a server with
one job moves each model's weights once a request. What was brought is dropped, never copied back,
because weights do not change.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from minimax_h3.stages.base import StageContext
from minimax_h3.stages.gpu_turn import GpuTurn
from minimax_h3.stages.torch_device import Placement

_WATCH_S = 0.02  # how soon an idle model notices that another wants the turn
_FREED_WAIT_S = 5.0  # the driver frees the memory of a process a moment after its locks


@dataclass(slots=True)
class Moves:
    """What a job's use of weights cost.

    Attributes:
        moves: how often they had to be brought.
        waited_s: seconds until it was this model's turn.
        brought_s: seconds of the copies.
    """

    moves: int = 0
    waited_s: float = 0.0
    brought_s: float = 0.0

    def add(self, other: "Moves") -> None:
        """Count another use."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


class DeviceWeights(Protocol):
    """How a stage makes sure that its weights are where it computes."""

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Around the load and the warm-up: the device has room for the weights."""
        ...

    def adopt(self, *modules: nn.Module) -> None:
        """Take loaded modules over, inside `loading`."""
        ...

    @contextmanager
    def on_device(self) -> Iterator[Moves]:
        """Around everything that reads weights; several threads may be inside, none twice."""
        ...

    def facts(self, *uses: Moves) -> dict[str, object]:
        """What the metadata says about the uses of a job."""
        ...


class ResidentWeights:
    """Weights that stay where they were loaded."""

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Nothing to wait for."""
        yield

    def adopt(self, *modules: nn.Module) -> None:
        """Nothing to do."""

    @contextmanager
    def on_device(self) -> Iterator[Moves]:
        """They are."""
        yield Moves()

    def facts(self, *uses: Moves) -> dict[str, object]:
        """Nothing to say."""
        del uses
        return {}


class OffloadedWeights:
    """Weights that take turns with those of other processes.

    Args:
        turn: shared with them.
        device: where the stage computes.
        log: told of every move.
    """

    def __init__(self, turn: GpuTurn, device: torch.device, log: logging.Logger) -> None:
        self._turn = turn
        self._device = device
        self._log = log
        self._parameters: list[nn.Parameter] = []
        self._waiting: list[Tensor] = []
        self._change = threading.Condition()
        self._users = 0
        self._here = False
        threading.Thread(target=self._watch, name="gpu-turn", daemon=True).start()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Load inside one's turn: weights come straight to the device, as everywhere else."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def adopt(self, *modules: nn.Module) -> None:
        """Copy what lies on the device into host memory; what the modules keep elsewhere stays."""
        for module in modules:
            for parameter in module.parameters():
                if parameter.device == self._device:
                    self._parameters.append(parameter)
                    self._waiting.append(_host_copy(parameter.data))
        self._log.info(
            "weights take turns on %s: %.2f GB wait in host memory", self._device, self._bytes / 1e9
        )

    @contextmanager
    def on_device(self) -> Iterator[Moves]:
        """Wait for the turn if another model has it, and bring the weights over if they are away.

        Yields:
            What that cost.

        Raises:
            torch.OutOfMemoryError: the device has no room although it is this model's turn.
        """
        cost = self._enter()
        try:
            yield cost
        finally:
            self._leave()

    def facts(self, *uses: Moves) -> dict[str, object]:
        """The sum of a job's uses."""
        whole = Moves()
        for use in uses:
            whole.add(use)
        return {
            "offload": {
                "moves": whole.moves,
                "waited_s": round(whole.waited_s, 3),
                "brought_s": round(whole.brought_s, 3),
            }
        }

    @property
    def _bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._waiting)

    def _enter(self) -> Moves:
        cost, began = Moves(), time.perf_counter()
        with self._change:
            # Those inside leave before anybody else enters, or a busy model would keep its turn.
            while self._here and self._users and self._turn.is_wanted():
                self._change.wait(_WATCH_S)
            self._give_if_wanted()
            if not self._here:
                self._turn.take()
                cost.waited_s = time.perf_counter() - began
                try:
                    self._bring(cost)
                except BaseException:
                    self._take_away()  # what had come already would be in the others' way
                    self._turn.give()
                    raise
                self._here = True
            self._users += 1
        return cost

    def _leave(self) -> None:
        with self._change:
            self._users -= 1
            self._give_if_wanted()
            self._change.notify_all()

    def _watch(self) -> None:
        """Give the turn of an idle model."""
        while True:
            time.sleep(_WATCH_S)
            with self._change:
                self._give_if_wanted()

    def _give_if_wanted(self) -> None:
        if self._here and not self._users and self._turn.is_wanted():
            self._take_away()
            self._here = False
            self._turn.give()

    def _bring(self, cost: Moves) -> None:
        if not self._parameters:
            return  # they are about to be loaded
        began = time.perf_counter()
        self._wait_for_room()
        for parameter, waiting in zip(self._parameters, self._waiting, strict=True):
            brought = torch.empty_like(waiting, device=self._device)
            brought.copy_(waiting, non_blocking=True)
            parameter.data = brought
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        cost.moves, cost.brought_s = 1, time.perf_counter() - began
        self._log.info("brought %.2f GB in %.2f s", self._bytes / 1e9, cost.brought_s)

    def _take_away(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        for parameter, waiting in zip(self._parameters, self._waiting, strict=True):
            parameter.data = waiting
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _wait_for_room(self) -> None:
        deadline = time.monotonic() + _FREED_WAIT_S
        while self._device.type == "cuda" and time.monotonic() < deadline:
            free, _ = torch.cuda.mem_get_info(self._device)
            if free >= self._bytes:
                return
            time.sleep(_WATCH_S)


def _host_copy(values: Tensor) -> Tensor:
    """A copy in host memory, pinned if it waits for a GPU.

    Memory is registered with the driver as it is: an allocation that torch pins itself is rounded
    up to a power of two.
    """
    copy = torch.empty_like(values, device="cpu")
    if values.device.type == "cuda":
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch's own
        torch.cuda.check_error(runtime.cudaHostRegister(copy.data_ptr(), copy.nbytes, 0))
    copy.copy_(values)
    return copy


def device_weights(context: StageContext, placement: Placement) -> DeviceWeights:
    """What the configuration says about this model's weights.

    Args:
        context: of the stage.
        placement: where it computes.

    Raises:
        ConfigError: weights are to take turns, and the model repository cannot be written.
    """
    if context.model_folder.name not in context.config.offloaded():
        return ResidentWeights()
    turn = GpuTurn(context.model_folder.parent, context.log)
    return OffloadedWeights(turn, placement.device, context.log)
