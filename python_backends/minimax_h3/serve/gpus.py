"""The GPUs that the models will find, asked of the driver: importing torch takes seconds."""

import ctypes
from importlib.metadata import PackageNotFoundError, version

from minimax_h3.core.errors import BackendUnavailableError

DRIVER = "libcuda.so.1"


def count_gpus() -> int:
    """GPUs that CUDA shows to processes with this environment; 0 without a driver.

    Source: CUDA driver API, `cuInit` and `cuDeviceGetCount`; neither makes a context.
    """
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return 0
    count = ctypes.c_int()
    failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return 0 if failed else count.value


def check_device(device: str) -> None:
    """Refuse a GPU that is not here, before a server is started whose models all fail.

    Args:
        device: as asked for; `auto` and `cpu` are always legal.

    Raises:
        BackendUnavailableError: names what is here.
    """
    kind, _, index = device.partition(":")
    if kind != "cuda":
        return
    gpus, reason = count_gpus(), "no GPU answers here"
    torch = _torch_version()
    if torch.endswith("+cpu"):
        gpus, reason = 0, f"this environment's PyTorch {torch} has no CUDA"
    if int(index or 0) < gpus:
        return
    if gpus:
        reason = f"{gpus} GPU{'s' if gpus > 1 else ''} here"
    legal = ", ".join(("auto", "cpu", *(f"cuda:{number}" for number in range(gpus))))
    raise BackendUnavailableError(f"device: {device!r} cannot be used: {reason}; legal: {legal}")


def _torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:  # a full installation of the server may bring its own
        return ""
