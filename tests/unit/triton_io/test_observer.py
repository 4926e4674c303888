"""What is reported of a request, and the JSON log that it ends in."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from minimax_h3.core.errors import CancelledError
from minimax_h3.stages.base import StageRequest, text_tensor
from minimax_h3.triton_io.json_log import json_handler
from minimax_h3.triton_io.observer import Observer, size_of

PLAN = text_tensor(json.dumps({"job_id": "j1"}))


class Kept:
    def __init__(self) -> None:
        self.values: dict[tuple, float] = {}

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        key = (name, *labels.values())
        self.values[key] = self.values.get(key, 0.0) + amount

    set = add

    def observe(self, name: str, value: float, **labels: str) -> None:
        self.add(name, value, **labels)


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    return tmp_path / "models.jsonl"


@pytest.fixture
def log(log_file: Path) -> Iterator[logging.Logger]:
    logger = logging.getLogger("test_observer.muxer")
    logger.setLevel(logging.DEBUG)
    handler = json_handler(log_file)
    logger.addHandler(handler)
    yield logger
    logger.removeHandler(handler)
    handler.close()


def entries(log_file: Path) -> list[dict]:
    return [json.loads(line) for line in log_file.read_text().splitlines()]


def test_a_step_of_the_ensemble(log: logging.Logger, log_file: Path) -> None:
    kept = Kept()
    request = StageRequest({"PLAN": PLAN, "AUDIO": np.zeros((2, 3), np.float32)})
    Observer("muxer", kept, log).served([request], [{"MP4": text_tensor(b"12345")}], 0.25)
    assert kept.values == {
        ("h3_stage_seconds", "muxer"): 0.25,
        ("h3_bytes_total", "muxer", "in"): len(PLAN[0]) + 24,
        ("h3_bytes_total", "muxer", "out"): 5,
    }
    (entry,) = entries(log_file)
    assert entry["message"] == "served"
    assert (entry["job_id"], entry["seconds"], entry["model"]) == ("j1", 0.25, "muxer")
    assert entry["time"].endswith("+00:00")


def test_an_error_by_its_kind(log: logging.Logger, log_file: Path) -> None:
    kept = Kept()
    request = StageRequest({"PLAN": PLAN})
    outcomes = [CancelledError("stopped"), ValueError("inside")]
    Observer("muxer", kept, log).served([request, request], outcomes, 0.1)
    assert kept.values["h3_errors_total", "muxer", "cancelled"] == 1
    assert kept.values["h3_errors_total", "muxer", "internal"] == 1
    assert [entry["error_kind"] for entry in entries(log_file)] == ["cancelled", "internal"]


def test_preprocess_names_the_job_that_it_made(log: logging.Logger, log_file: Path) -> None:
    Observer("preprocess", Kept(), log).served([StageRequest({})], [{"PLAN": PLAN}], 0.1)
    assert entries(log_file)[0]["job_id"] == "j1"


def test_the_dit_and_jobs_report_errors_only(log: logging.Logger, log_file: Path) -> None:
    kept = Kept()
    Observer("jobs", kept, log).served([StageRequest({})], [{"ANSWER": PLAN}], 0.1)
    assert kept.values == {}
    assert not log_file.exists()


def test_garbage_instead_of_a_plan_is_no_error(log: logging.Logger, log_file: Path) -> None:
    for garbage in (b"{", b"[]", b"7"):
        request = StageRequest({"PLAN": text_tensor(garbage)})
        Observer("muxer", Kept(), log).served([request], [{}], 0.1)
    assert all("job_id" not in entry for entry in entries(log_file))


def test_sizes() -> None:
    assert size_of(np.zeros((2, 3), np.int64)) == 48
    assert size_of(np.array([b"abc", b"de"], dtype=object)) == 5
    assert size_of(object()) == 0


def test_an_exception_is_one_line(log: logging.Logger, log_file: Path) -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        log.exception("went wrong")
    (entry,) = entries(log_file)
    assert entry["level"] == "error"
    assert "ValueError: two\nlines" in entry["exception"]
