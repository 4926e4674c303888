"""One piece of training: bounded in time, resumable from weights, with logs and the best weights.

A piece starts with a short warm-up and ends on a cosine, so that pieces can follow one another
without the optimizer's state. On a GPU a step (drawing pictures and sound included) is one CUDA
graph per kind of batch; the host only draws scene parameters and reads the loss now and then.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from build_engines.train_tiny.curves import write_curves

_GRAPH_WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Piece:
    """Settings of one piece.

    Attributes:
        seconds: of training, evaluations included.
        max_steps: whichever ends first ends the piece.
        peak_rate: AdamW's learning rate after the warm-up.
        warm_up_steps: linear rise of the rate.
        seed: of data and of weights that are not resumed.
        log_steps: between two entries of the log.
        evaluate_seconds: between two evaluations of the averaged weights.
        averaging: share of the new weights in the running average, per step.
    """

    seconds: float
    max_steps: int = 1_000_000
    peak_rate: float = 1e-3
    warm_up_steps: int = 200
    seed: int = 0
    log_steps: int = 50
    evaluate_seconds: float = 90.0
    averaging: float = 0.002


class Batch(Protocol):
    """Tensors of one step."""

    def to(self, device: torch.device | str) -> Self:
        """The same on another device."""

    def copy_(self, other: Self, /) -> None:
        """Take over another batch of the same kind, in place."""


_Batch = TypeVar("_Batch", bound=Batch)


class Learner(Protocol[_Batch]):
    """A model in training."""

    @property
    def module(self) -> nn.Module:
        """Its parameters are trained."""

    def kind_of(self, step: int) -> str:
        """Which kind of batch a step takes."""

    def draw(self, kind: str, step: int) -> _Batch:
        """The batch of a step, on the CPU."""

    def losses(self, kind: str, batch: _Batch, /) -> dict[str, Tensor]:
        """Scalars on the device; `total` is minimised. No call may wait for the device."""

    def evaluate(self) -> dict[str, float]:
        """Held-out figures; `score` is the one that decides which weights are kept."""

    def save(self, folder: Path) -> None:
        """Write weights and configuration in the official layout."""


@dataclass(slots=True)
class Log:
    """What happened in a piece: one entry a logged step and one an evaluation."""

    steps: list[dict[str, float]] = field(default_factory=list)
    evaluations: list[dict[str, float]] = field(default_factory=list)


def run_piece(
    learner: Learner[_Batch],
    piece: Piece,
    folder: Path,
    *,
    use_graphs: bool,
    say: Callable[[str], None] = print,
) -> Log:
    """Train for one piece and keep the best averaged weights in `folder`.

    Args:
        learner: the model, on its device.
        piece: settings.
        folder: gets the weights, `curves.json` and `curves.png`.
        use_graphs: replay steps as CUDA graphs.
        say: gets a line per logged step.

    Returns:
        The log, which is in `curves.json` too.

    Raises:
        FloatingPointError: the loss is not finite.
    """
    torch.manual_seed(piece.seed)
    steps = Steps(learner, piece, use_graphs)
    log, began = Log(), time.monotonic()
    best, evaluated = -math.inf, began
    for step in range(piece.max_steps):
        share = max((time.monotonic() - began) / piece.seconds, step / piece.max_steps)
        losses = steps.run(step, _rate(piece, step, share))
        is_last = share >= 1 or step == piece.max_steps - 1
        if step % piece.log_steps == 0 or is_last:
            log.steps.append(_entry(step, began, losses))
            say(_line(log.steps[-1]))
        if is_last or time.monotonic() - evaluated > piece.evaluate_seconds:
            with steps.averaged_weights():
                figures = learner.evaluate()
                if figures["score"] > best:
                    best = figures["score"]
                    learner.save(folder)
            log.evaluations.append({"step": step, "seconds": time.monotonic() - began, **figures})
            say("held out: " + _line(log.evaluations[-1]))
            write_curves(folder, log.steps, log.evaluations)
            evaluated = time.monotonic()
        if is_last:
            break
    return log


def _rate(piece: Piece, step: int, share: float) -> float:
    """Learning rate: linear warm-up, then a cosine over the piece down to a hundredth."""
    rise = min(1.0, (step + 1) / piece.warm_up_steps)
    fall = 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))
    return piece.peak_rate * rise * fall


def _entry(step: int, began: float, losses: dict[str, Tensor]) -> dict[str, float]:
    entry = {name: float(value) for name, value in losses.items()}
    if not all(math.isfinite(value) for value in entry.values()):
        raise FloatingPointError(f"step {step}: the loss is not finite: {entry}")
    return {"step": step, "seconds": time.monotonic() - began, **entry}


def _line(entry: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.5g}" for name, value in entry.items())


class Steps(Generic[_Batch]):
    """Optimizer steps of a learner, with a running average of its weights."""

    def __init__(self, learner: Learner[_Batch], piece: Piece, use_graphs: bool) -> None:
        """Set up the optimizer.

        Raises:
            ValueError: graphs are asked of a device that has none.
        """
        self._learner = learner
        self._piece = piece
        self._parameters: list[Tensor] = [
            parameter for parameter in learner.module.parameters() if parameter.requires_grad
        ]
        self._device = self._parameters[0].device
        if use_graphs and self._device.type != "cuda":
            raise ValueError(f"graphs: device {self._device} has none; legal: cuda")
        self._use_graphs = use_graphs
        self._rate = torch.tensor(piece.peak_rate, device=self._device)
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=self._rate,
            betas=(0.9, 0.99),
            weight_decay=0.01,
            fused=self._device.type == "cuda",
            capturable=self._device.type == "cuda",
        )
        self._averaged = [parameter.detach().clone() for parameter in self._parameters]
        self._inputs: dict[str, _Batch] = {}
        self._losses: dict[str, dict[str, Tensor]] = {}
        self._graphs: dict[str, torch.cuda.CUDAGraph] = {}
        self._calls: dict[str, int] = {}

    @contextmanager
    @torch.no_grad()
    def averaged_weights(self) -> Iterator[None]:
        """The module holds the averaged weights inside the block, and its own again after it."""
        own = [parameter.clone() for parameter in self._parameters]
        torch._foreach_copy_(self._parameters, self._averaged)
        try:
            yield
        finally:
            torch._foreach_copy_(self._parameters, own)

    def run(self, step: int, rate: float) -> dict[str, Tensor]:
        """Run one step.

        Returns:
            The losses, on the device.
        """
        kind = self._learner.kind_of(step)
        batch = self._learner.draw(kind, step)
        self._rate.fill_(rate)
        if not self._use_graphs:
            return self._step(kind, batch.to(self._device))
        if kind not in self._inputs:
            self._inputs[kind] = batch.to(self._device)
        self._inputs[kind].copy_(batch)
        return self._replay(kind)

    def _replay(self, kind: str) -> dict[str, Tensor]:
        """A step of the graph; the first ones run without it and settle what libraries choose."""
        calls = self._calls[kind] = self._calls.get(kind, 0) + 1
        inputs = self._inputs[kind]
        if calls <= _GRAPH_WARM_UP:
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's own gap
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                losses = self._step(kind, inputs)
            torch.cuda.current_stream().wait_stream(stream)
            return losses
        if kind not in self._graphs:
            self._optimizer.zero_grad(set_to_none=True)
            graph = torch.cuda.CUDAGraph()
            # Graphs run one after another, so all of them may use the first one's memory.
            shared = next((other.pool() for other in self._graphs.values()), None)
            with torch.cuda.graph(graph, pool=shared):
                self._losses[kind] = self._step(kind, inputs)
            self._graphs[kind] = graph
        self._graphs[kind].replay()
        return self._losses[kind]

    def _step(self, kind: str, batch: _Batch) -> dict[str, Tensor]:
        self._optimizer.zero_grad(set_to_none=True)
        losses = self._learner.losses(kind, batch)
        torch.autograd.backward(losses["total"])
        losses["gradient"] = nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(self._averaged, self._parameters, self._piece.averaging)
        return {name: value.detach() for name, value in losses.items()}
