"""Device, dtype and threads: what `auto` means, and that a name is never replaced."""

import logging
import os
from collections.abc import Iterator

import pytest
import torch

from minimax_h3.core.config import StageConfig
from minimax_h3.core.errors import BackendUnavailableError
from minimax_h3.stages.torch_device import choose_placement

LOG = logging.getLogger("test")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_auto_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    placement = choose_placement(StageConfig(), LOG)
    assert (placement.device.type, placement.dtype) == ("cpu", torch.float32)
    assert "device cpu (asked auto), dtype torch.float32 (asked auto)" in caplog.text
    facts = placement.facts()
    assert (facts["device"], facts["dtype"]) == ("cpu", "float32")


def test_the_peak_counts_from_where_it_is_watched() -> None:
    placement = choose_placement(StageConfig(device="cpu"), LOG)
    placement.watch_peak()  # whatever ran in this process before
    large = torch.ones(64 * 1024**2)
    with_large = placement.peak_bytes()
    del large
    placement.watch_peak()
    without = placement.peak_bytes()
    assert with_large - without > 200 * 1024**2
    middle = torch.ones(32 * 1024**2)
    assert without + 100 * 1024**2 < placement.peak_bytes() < with_large
    del middle


def test_auto_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    placement = choose_placement(StageConfig(), LOG)
    assert (str(placement.device), placement.dtype) == ("cuda:0", torch.bfloat16)


def test_a_named_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(BackendUnavailableError, match="'cuda:1' is not here; legal: cpu, cuda:0"):
        choose_placement(StageConfig(device="cuda:1"), LOG)


def test_dtype_by_name() -> None:
    placement = choose_placement(StageConfig(device="cpu", dtype="bf16"), LOG)
    assert placement.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("asked", "beside", "cores", "expected"),
    [(0, 0, 8, 8), (0, 1, 8, 4), (0, 1, 1, 1), (3, 1, 8, 3)],
)
def test_cores_are_shared_between_stages_that_run_together(
    monkeypatch: pytest.MonkeyPatch, asked: int, beside: int, cores: int, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    choose_placement(StageConfig(device="cpu", cpu_threads=asked), LOG, beside=beside)
    assert torch.get_num_threads() == expected
