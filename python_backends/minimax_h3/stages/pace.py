"""Keeps the host one step ahead of the GPU, and no more.

A step only launches work. Without a pace all steps of a job would be launched within seconds:
progress would be a lie, a cancel would come too late, and other jobs would wait for all of them.
"""

from collections.abc import Callable
from typing import Protocol

import torch


class Mark(Protocol):
    """A place in a device's queue, such as `torch.cuda.Event`."""

    def record(self) -> None:
        """Put the mark behind everything launched so far."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has come to the mark."""
        ...


class Pace:
    """Waits, after each launch, for the launch before it; so the device never runs dry.

    Args:
        make_mark: makes a mark; None where a launch is done when it returns.
    """

    def __init__(self, make_mark: Callable[[], Mark] | None) -> None:
        self._make_mark = make_mark
        self._newest: Mark | None = None

    @classmethod
    def on(cls, device: torch.device) -> "Pace":
        """The pace of a device."""
        return cls(_sleeping_mark if device.type == "cuda" else None)

    def launched(self) -> None:
        """A step was launched."""
        if self._make_mark is None:
            return
        before, self._newest = self._newest, self._make_mark()
        self._newest.record()
        if before is not None:
            before.synchronize()


def _sleeping_mark() -> Mark:
    """A wait for it sleeps: a step takes seconds, and a core that spins is one less for others."""
    event: Mark = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch's own
    return event
