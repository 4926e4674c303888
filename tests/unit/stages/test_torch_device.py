"""Device, dtype and threads: what `auto` means, and that a name is never replaced."""

import json
import logging
import os
import subprocess
import sys
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


PEAKS = """
import json, logging, torch
from minimax_h3.core.config import StageConfig
from minimax_h3.stages.torch_device import choose_placement
placement = choose_placement(StageConfig(device="cpu"), logging.getLogger())
large = torch.ones(64 * 1024**2)
peaks = [placement.peak_bytes()]
del large
placement.watch_peak()
peaks.append(placement.peak_bytes())
middle = torch.ones(32 * 1024**2)
peaks.append(placement.peak_bytes())
print(json.dumps(peaks))
"""


def test_the_peak_counts_from_where_it_is_watched() -> None:
    """In a process of its own: one that ran other tests may give memory back at any moment."""
    told = subprocess.run([sys.executable, "-c", PEAKS], check=True, capture_output=True)
    with_large, without, with_middle = json.loads(told.stdout)
    assert with_large - without > 200 * 1024**2
    assert without + 100 * 1024**2 < with_middle < with_large


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
