"""Finished pictures on their way to the host while the device goes on with the next clip."""

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Frames: TypeAlias = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class DecodedClip:
    """Pictures of one clip on the host.

    Attributes:
        rgb: uint8 [k, H, W, 3], if asked for.
        yuv: uint8 [k, 3 H / 2, W], planar 4:2:0, if asked for; see `vae.pixels`.
    """

    rgb: Frames | None = None
    yuv: Frames | None = None


@dataclass(slots=True)
class Outgoing:
    """One clip that leaves the device.

    Attributes:
        rgb, yuv, is_finite: on the host; valid once `arrived` is.
        arrived: recorded behind the copies; None on a CPU, where nothing has to travel.
    """

    rgb: Tensor | None
    yuv: Tensor | None
    is_finite: Tensor
    arrived: torch.cuda.Event | None = None
    _sources: tuple[Tensor | None, ...] = field(default=(), repr=False)

    def result(self) -> tuple[DecodedClip, bool]:
        """Wait for the copies; returns the pictures and whether all values were finite."""
        if self.arrived is not None:
            self.arrived.synchronize()
            self._sources = ()
        rgb, yuv = (None if each is None else each.numpy() for each in (self.rgb, self.yuv))
        return DecodedClip(rgb, yuv), bool(self.is_finite)


class Sender:
    """Copies clips to pinned host memory on a stream of its own.

    Args:
        device: where the pictures are.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's own

    def send(self, rgb: Tensor | None, yuv: Tensor | None, is_finite: Tensor) -> Outgoing:
        """Begin to copy; the device's own work is not waited for by the host."""
        if self._stream is None:
            return Outgoing(rgb, yuv, is_finite)
        sources = (rgb, yuv, is_finite)
        self._stream.wait_stream(torch.cuda.current_stream(is_finite.device))
        with torch.cuda.stream(self._stream):
            copies = [None if each is None else _to_pinned(each) for each in sources]
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's own
        arrived.record(self._stream)
        flag = copies[2]
        assert flag is not None
        # The sources live until the copies are done: their memory belongs to the other stream.
        return Outgoing(copies[0], copies[1], flag, arrived, sources)


def _to_pinned(source: Tensor) -> Tensor:
    target = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
    return target.copy_(source, non_blocking=True)
