"""The host waits for the step before the newest one."""

import torch

from minimax_h3.stages.pace import Pace


class Marks:
    """Counts marks and writes down what happens to each."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.count = 0

    def __call__(self) -> "Mark":
        self.count += 1
        return Mark(self.count, self.events)


class Mark:
    def __init__(self, number: int, events: list[str]) -> None:
        self.number, self.events = number, events

    def record(self) -> None:
        self.events.append(f"record {self.number}")

    def synchronize(self) -> None:
        self.events.append(f"wait {self.number}")


def test_one_step_stays_under_way() -> None:
    marks = Marks()
    pace = Pace(marks)
    for _ in range(3):
        pace.launched()
    assert marks.events == ["record 1", "record 2", "wait 1", "record 3", "wait 2"]


def test_a_cpu_needs_no_marks() -> None:
    pace = Pace.on(torch.device("cpu"))
    pace.launched()
    assert pace._newest is None
