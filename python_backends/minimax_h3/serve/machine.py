"""What this machine has free: GPU memory, host memory, shared memory, disk. Measured, not assumed.

CUDA's driver library is asked directly: importing torch would cost each start seconds.
"""

import ctypes
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from minimax_h3.serve.shared_memory import SHARED_MEMORY

_CGROUP = Path("/sys/fs/cgroup")
_NAME_BYTES = 256


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as CUDA counts them, `CUDA_VISIBLE_DEVICES` obeyed.

    Attributes:
        name: product name.
        total, free: bytes of its memory; free is what no process holds now.
    """

    name: str
    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Machine:
    """Free bytes of one machine.

    Attributes:
        gpus: in CUDA's order.
        host: memory that processes may still take, the container's limit obeyed.
        shared_memory: of `/dev/shm`.
        disk: of the file system of the run folder.
    """

    gpus: tuple[Gpu, ...]
    host: int
    shared_memory: int
    disk: int


def measure(run_dir: Path) -> Machine:
    """Look at this machine.

    Args:
        run_dir: where a start will write; its nearest existing folder is looked at.
    """
    folder = run_dir.absolute()
    while not folder.exists():
        folder = folder.parent
    return Machine(
        gpus=_gpus(),
        host=min(psutil.virtual_memory().available, _container_headroom(_CGROUP)),
        shared_memory=shutil.disk_usage(SHARED_MEMORY).free,
        disk=shutil.disk_usage(folder).free,
    )


def _container_headroom(cgroup: Path) -> int:
    """Bytes up to the container's limit, reclaimable file pages counted as free."""
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
        lines = (cgroup / "memory.stat").read_text().splitlines()
    except OSError:
        return 1 << 62  # no limit that this process could see
    if limit == "max":
        return 1 << 62
    counts = dict(line.split() for line in lines)
    pages = sum(int(counts.get(name, 0)) for name in ("inactive_file", "active_file"))
    return int(limit) - used + pages


def _gpus() -> tuple[Gpu, ...]:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ()
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    return tuple(_gpu(driver, index) for index in range(count.value))


def _gpu(driver: ctypes.CDLL, index: int) -> Gpu:
    device, total = ctypes.c_int(), ctypes.c_size_t()
    name, bus = (ctypes.create_string_buffer(_NAME_BYTES) for _ in range(2))
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetName(name, _NAME_BYTES, device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    driver.cuDeviceGetPCIBusId(bus, _NAME_BYTES, device)
    return Gpu(name.value.decode(), total.value, _free_of(bus.value, total.value))


class _NvmlMemory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def _free_of(bus: bytes, total: int) -> int:
    """Free bytes by NVML, which needs no context on the device; without it all of them."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return total
    handle, memory = ctypes.c_void_p(), _NvmlMemory()
    if (
        nvml.nvmlInit_v2()
        or nvml.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(handle))
        or nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    ):
        return total
    return min(int(memory.free), total)
