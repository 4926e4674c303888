"""Which device and dtype a stage computes on: chosen once at load, logged, reported."""

import ctypes
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from minimax_h3.core.config import StageConfig
from minimax_h3.core.errors import BackendUnavailableError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc malloc.h
_STATUS, _PEAK_RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # man 5 proc: the peak resident size becomes the present one
_LOG = logging.getLogger(__name__)
LOW_MEMORY_BYTES = 16_000_000_000  # a decode of the largest canvas takes about as much
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Placement:
    """Device and compute dtype of one stage."""

    device: torch.device
    dtype: torch.dtype

    def facts(self) -> dict[str, object]:
        """What the metadata says about it."""
        facts: dict[str, object] = {
            "device": str(self.device),
            "dtype": str(self.dtype)[6:],
            "peak_bytes": self.peak_bytes(),
        }
        if self.device.type == "cuda":
            facts["device_name"] = torch.cuda.get_device_name(self.device)
        return facts

    def watch_peak(self) -> None:
        """Count the peak from here on."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        try:
            _PEAK_RESET.write_text(_RESET_PEAK)
        except OSError:
            _LOG.debug("the peak of this process cannot be reset; it counts from its start")

    def release_cached(self) -> None:
        """Give freed blocks back when the GPU is nearly full: no other process can use them."""
        if self.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self.device)
            if free < LOW_MEMORY_BYTES:
                torch.cuda.empty_cache()

    def peak_bytes(self) -> int:
        """Most memory since `watch_peak`: of tensors on a GPU, of the whole process on a CPU."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        lines = _STATUS.read_text(encoding="utf-8").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])


def choose_placement(config: StageConfig, log: logging.Logger, beside: int = 0) -> Placement:
    """Resolve `device` and `dtype`: `auto` means the first GPU and BF16, or the CPU and FP32.

    Args:
        config: the parameters; `cpu_threads` 0 shares the cores between this stage and those that
            run beside it, because busy-waiting thread pools on the same cores starve each other.
        log: where the choice is told.
        beside: stages that compute at the same time as this one.

    Raises:
        BackendUnavailableError: a device was asked for by name and is not there.
    """
    wanted = config.device
    if wanted == "auto":
        wanted = "cuda:0" if torch.cuda.is_available() else "cpu"
    device = torch.device(wanted if wanted != "cuda" else "cuda:0")
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise BackendUnavailableError(
                f"device: {config.device!r} is not here; legal: cpu"
                + "".join(f", cuda:{index}" for index in range(count))
            )
    default = "bf16" if device.type == "cuda" else "fp32"
    dtype = _DTYPES[default if config.dtype == "auto" else config.dtype]
    if device.type == "cpu":
        _keep_freed_memory(log)
    threads = config.cpu_threads or max(1, len(os.sched_getaffinity(0)) // (1 + beside))
    torch.set_num_threads(threads)
    log.info("%d CPU threads (asked %d)", threads, config.cpu_threads)
    log.info(
        "device %s (asked %s), dtype %s (asked %s)", device, config.device, dtype, config.dtype
    )
    return Placement(device, dtype)


def _keep_freed_memory(log: logging.Logger) -> None:
    """Keep freed blocks in the process instead of giving them back after every operation.

    A step allocates and frees the same activations again; by default the C library returns them to
    the kernel each time, and faulting the pages in anew took a third of a small step.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        log.info("this C library has no mallopt; freed memory goes back to the system")
        return
    for option, size in ((_M_MMAP_THRESHOLD, 32 * 1024**2), (_M_TRIM_THRESHOLD, 256 * 1024**2)):
        if not mallopt(option, size):
            log.warning("mallopt(%d, %d) was refused", option, size)
