"""A GPU that is asked for by name and is not here is refused before anything starts."""

from collections.abc import Callable

import pytest

from minimax_h3.attention.capabilities import Processor
from minimax_h3.core.config import StageConfig
from minimax_h3.core.errors import BackendUnavailableError
from minimax_h3.serve import gpus
from minimax_h3.serve.settings import ServeSettings, check_settings


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A machine with some GPUs and some PyTorch."""

    def use(count: int, torch: str = "2.13.0") -> None:
        monkeypatch.setattr(gpus, "count_gpus", lambda: count)
        monkeypatch.setattr(gpus, "version", lambda package: torch)

    return use


@pytest.mark.parametrize(
    ("device", "count", "torch", "words"),
    [
        ("cuda", 0, "2.13.0", "device: 'cuda' cannot be used: no GPU answers here; legal: auto, "),
        ("cuda:2", 2, "2.13.0+cu130", "'cuda:2'.*: 2 GPUs here; legal: auto, cpu, cuda:0, cuda:1$"),
        ("cuda:1", 1, "2.13.0", "1 GPU here; legal: auto, cpu, cuda:0$"),
        ("cuda", 4, "2.13.0+cpu", r"PyTorch 2\.13\.0\+cpu has no CUDA; legal: auto, cpu$"),
    ],
)
def test_a_gpu_that_is_not_here(machine, device: str, count: int, torch: str, words: str) -> None:
    machine(count, torch)
    with pytest.raises(BackendUnavailableError, match=words):
        gpus.check_device(device)


@pytest.mark.parametrize(
    ("device", "count"), [("auto", 0), ("cpu", 0), ("cuda", 1), ("cuda:1", 2), ("cuda:0", 1)]
)
def test_what_is_here(machine, device: str, count: int) -> None:
    machine(count)
    gpus.check_device(device)


def test_no_driver_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "DRIVER", "libcuda.so.0")
    assert gpus.count_gpus() == 0


class Driver:
    """Answers as `libcuda` does: a status, and the count through a pointer."""

    def __init__(self, status: int, count: int) -> None:
        self._status, self._count = status, count

    def cuDeviceGet(self, handle, index: int) -> int:  # noqa: N802
        handle._obj.value = 10 + index
        return 0

    def cuDeviceGetName(self, name, size: int, handle) -> int:  # noqa: N802
        name.value = f"GPU with handle {handle.value}".encode()
        return 0

    def cuDeviceGetAttribute(self, figure, attribute: int, handle) -> int:  # noqa: N802
        figure._obj.value = {75: 9, 76: 1}[attribute]
        return 0

    def cuInit(self, flags: int) -> int:  # noqa: N802  # the driver's own name
        assert flags == 0
        return self._status

    def cuDeviceGetCount(self, count) -> int:  # noqa: N802
        count._obj.value = self._count
        return 0


@pytest.mark.parametrize(("status", "count", "counted"), [(0, 3, 3), (100, 3, 0), (0, 0, 0)])
def test_the_driver_is_asked(monkeypatch, status: int, count: int, counted: int) -> None:
    monkeypatch.setattr(gpus.ctypes, "CDLL", lambda name: Driver(status, count))
    assert gpus.count_gpus() == counted


@pytest.mark.parametrize(
    ("device", "handle"), [("auto", 10), ("cuda", 10), ("cuda:0", 10), ("cuda:1", 11)]
)
def test_the_driver_tells_what_a_gpu_is(machine, monkeypatch, device: str, handle: int) -> None:
    machine(2)
    monkeypatch.setattr(gpus.ctypes, "CDLL", lambda name: Driver(0, 2))
    assert gpus.processor_of(device) == Processor("cuda", f"GPU with handle {handle}", (9, 1))


@pytest.mark.parametrize(
    ("device", "count", "torch"), [("cpu", 2, "2"), ("auto", 0, "2"), ("auto", 2, "2.13.0+cpu")]
)
def test_auto_without_a_gpu_that_pytorch_can_use_is_the_cpu(machine, device, count, torch) -> None:
    machine(count, torch)
    assert gpus.processor_of(device) == Processor("cpu")


def test_nothing_is_started_and_another_machines_command_is_printed(settings_with, machine) -> None:
    machine(0)
    settings: ServeSettings = settings_with(stage=StageConfig(device="cuda"))
    with pytest.raises(BackendUnavailableError, match="device: 'cuda'"):
        check_settings(settings)
    assert check_settings(settings, starts=False).stage.device == "cuda"
