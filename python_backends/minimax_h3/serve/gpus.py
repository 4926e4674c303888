"""The GPUs that the models will find, asked of the driver: importing torch takes seconds."""

import ctypes
from importlib.metadata import PackageNotFoundError, version

from minimax_h3.attention.capabilities import Processor
from minimax_h3.core.errors import BackendUnavailableError

DRIVER = "libcuda.so.1"
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_NAME_BYTES = 256


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


def processor_of(device: str) -> Processor:
    """What the models will compute on.

    Args:
        device: as asked for, and legal by `check_device`; `auto` is the first GPU or the CPU.

    Source: CUDA driver API, `cuDeviceGetName` and `cuDeviceGetAttribute`.
    """
    kind, _, index = device.partition(":")
    if kind == "cpu" or (kind == "auto" and not _usable_gpus()):
        return Processor("cpu")
    driver, handle, figure = ctypes.CDLL(DRIVER), ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    driver.cuInit(0)
    driver.cuDeviceGet(ctypes.byref(handle), int(index or 0))
    driver.cuDeviceGetName(name, _NAME_BYTES, handle)
    version_numbers = []
    for attribute in (_MAJOR, _MINOR):
        driver.cuDeviceGetAttribute(ctypes.byref(figure), attribute, handle)
        version_numbers.append(figure.value)
    major, minor = version_numbers
    return Processor("cuda", name.value.decode(), (major, minor))


def _usable_gpus() -> int:
    """GPUs that this environment's PyTorch can use."""
    return 0 if _torch_version().endswith("+cpu") else count_gpus()


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
