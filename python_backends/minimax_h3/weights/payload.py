"""Tensor payloads from safetensors files into memory, without a copy of the file in between.

A tensor for the host is read into memory of its own. A tensor for a GPU passes through two pinned
slots: while one is copied to the device, the other is filled by several threads, because one thread
copies out of the page cache slower than the device takes it. So the host holds two slots, however
large the checkpoint is.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from minimax_h3.core.errors import CheckpointError
from minimax_h3.weights.safetensors_files import SafetensorsFile

TORCH_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
SLOTS = 2
SLOT_BYTES = 128 * 1024**2
_THREADS = 8
_PART_BYTES = 8 * 1024**2  # one thread's piece of a slot
_HOST = torch.device("cpu")


def read_tensor(file: SafetensorsFile, name: str, *, pinned: bool = False) -> Tensor:
    """Read one tensor into host memory of its own.

    Args:
        file: the file's header.
        name: of the tensor.
        pinned: into page-locked memory, from which a GPU copies at full speed.

    Raises:
        CheckpointError: its dtype is not a plain float, or the file changed since its header was
            read.
    """
    dtype = _dtype_of(file, name)
    header = file.tensors[name]
    buffer = torch.empty(header.num_bytes, dtype=torch.uint8, pin_memory=pinned)
    with _open(file, name) as descriptor:
        _fill(descriptor, buffer, header.begin, file, name)
    return buffer.view(dtype).reshape(header.shape)


class PayloadReader:
    """Reads tensors of one component to their devices.

    As a context manager; the slots are freed at the end.

    Args:
        device: where tensors go.
        slot_bytes: size of each slot; only tests pass another.
    """

    def __init__(self, device: torch.device, slot_bytes: int = SLOT_BYTES) -> None:
        self._device = device
        self._slot_bytes = slot_bytes
        self._slots: list[_Slot] = []
        self._next = 0
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="read-weights")

    def __enter__(self) -> "PayloadReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()
        for slot in self._slots:
            slot.wait()
        self._slots = []

    def read(self, file: SafetensorsFile, name: str, device: torch.device) -> Tensor:
        """Read one tensor to `device`: the reader's own, or the host.

        Raises:
            CheckpointError: as `read_tensor`.
        """
        if device.type == "cpu":
            return read_tensor(file, name, pinned=self._device.type == "cuda")
        return self.through_slots(file, name)

    def through_slots(self, file: SafetensorsFile, name: str) -> Tensor:
        """Read one tensor to the reader's device, a slot at a time."""
        dtype = _dtype_of(file, name)
        header = file.tensors[name]
        size = header.num_bytes
        target = torch.empty(size, dtype=torch.uint8, device=self._device)
        with _open(file, name) as descriptor:
            for start in range(0, size, self._slot_bytes):
                count = min(self._slot_bytes, size - start)
                slot = self._free_slot()
                self._fill_slot(descriptor, slot.memory[:count], header.begin + start, file, name)
                slot.send(target[start : start + count])
        return target.view(dtype).reshape(header.shape)

    def _free_slot(self) -> "_Slot":
        """The slot that was sent longest ago, once its copy is done."""
        if len(self._slots) < SLOTS:
            self._slots.append(_Slot.on(self._device, self._slot_bytes))
            return self._slots[-1]
        slot = self._slots[self._next]
        self._next = (self._next + 1) % SLOTS
        slot.wait()
        return slot

    def _fill_slot(
        self, descriptor: int, memory: Tensor, offset: int, file: SafetensorsFile, name: str
    ) -> None:
        pieces = [
            self._threads.submit(
                _fill,
                descriptor,
                memory[start : start + _PART_BYTES],
                offset + start,
                file,
                name,
            )
            for start in range(0, len(memory), _PART_BYTES)
        ]
        for piece in pieces:
            piece.result()


@dataclass(slots=True)
class _Slot:
    """Host memory on its way to the device.

    Attributes:
        memory: uint8, pinned where the device is a GPU.
        sent: recorded behind the newest copy; None on the CPU, which copies at once.
    """

    memory: Tensor
    sent: torch.cuda.Event | None

    @classmethod
    def on(cls, device: torch.device, size: int) -> "_Slot":
        is_gpu = device.type == "cuda"
        memory = torch.empty(size, dtype=torch.uint8, pin_memory=is_gpu)
        # torch's own constructor has no types
        return cls(memory, torch.cuda.Event() if is_gpu else None)  # type: ignore[no-untyped-call]

    def send(self, target: Tensor) -> None:
        target.copy_(self.memory[: len(target)], non_blocking=True)
        if self.sent is not None:
            self.sent.record(torch.cuda.current_stream(target.device))

    def wait(self) -> None:
        if self.sent is not None:
            self.sent.synchronize()


def _dtype_of(file: SafetensorsFile, name: str) -> torch.dtype:
    dtype = file.tensors[name].dtype
    if dtype not in TORCH_DTYPES:
        raise CheckpointError(
            f"{file.path}: {name} has dtype {dtype}; legal: {', '.join(TORCH_DTYPES)}"
        )
    return TORCH_DTYPES[dtype]


@contextmanager
def _open(file: SafetensorsFile, name: str) -> Iterator[int]:
    try:
        descriptor = os.open(file.path, os.O_RDONLY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
    except OSError as error:
        raise CheckpointError(f"{file.path}: tensor {name} not readable ({error})") from error


def _fill(descriptor: int, memory: Tensor, offset: int, file: SafetensorsFile, name: str) -> None:
    view = memory.numpy().data
    while view:
        count = os.preadv(descriptor, [view], offset)
        if not count:
            raise CheckpointError(f"{file.path}: truncated inside tensor {name}")
        view, offset = view[count:], offset + count
