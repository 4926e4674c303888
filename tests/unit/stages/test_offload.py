"""Weights that take turns: never two at once, never away while somebody reads them, always equal.

A second copy in host memory stands for the GPU: what is moved, when and by whom is the same.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from minimax_h3.core.config import StageConfig
from minimax_h3.stages.base import StageContext
from minimax_h3.stages.gpu_turn import GpuTurn
from minimax_h3.stages.offload import Moves, OffloadedWeights, ResidentWeights, device_weights
from minimax_h3.stages.torch_device import Placement

LOG = logging.getLogger("test")
CPU = torch.device("cpu")


class Model:
    """A layer whose weights take turns with those of others in a folder."""

    def __init__(self, folder: Path, value: float) -> None:
        self.weights = OffloadedWeights(GpuTurn(folder, LOG), CPU, LOG)
        with self.weights.loading():
            self.layer = nn.Linear(4, 4, bias=False).requires_grad_(False)
            self.layer.weight.fill_(value)
            self.weights.adopt(self.layer)
        self.waiting = self.weights._waiting[0].data_ptr()
        self.moves = 0

    @contextmanager
    def on_device(self) -> Iterator[None]:
        with self.weights.on_device() as cost:
            self.moves += cost.moves
            yield

    @property
    def is_away(self) -> bool:
        return self.layer.weight.data_ptr() == self.waiting


def test_weights_move_when_another_model_wants_the_turn_and_not_before(tmp_path: Path) -> None:
    first = Model(tmp_path, 1.0)
    for _ in range(3):
        with first.on_device():
            assert not first.is_away
    assert first.moves == 0  # they were loaded there
    second = Model(tmp_path, 2.0)  # it loads in its own turn, for which the idle first makes room
    assert first.is_away
    assert not second.is_away
    with first.on_device():
        assert second.is_away
        assert torch.equal(first.layer.weight, torch.full((4, 4), 1.0))
    with second.on_device():
        assert first.is_away
        assert torch.equal(second.layer.weight, torch.full((4, 4), 2.0))
    assert (first.moves, second.moves) == (1, 1)


def test_nobody_reads_weights_that_are_away(tmp_path: Path) -> None:
    models = [Model(tmp_path, float(value)) for value in range(1, 4)]
    inside, most, wrong = [0] * len(models), [0], []
    lock = threading.Lock()

    def work(index: int) -> None:
        model = models[index]
        for _ in range(20):
            with model.weights.on_device():
                with lock:
                    inside[index] += 1
                    most[0] = max(most[0], sum(count > 0 for count in inside))
                time.sleep(0.001)
                expected = torch.full((4, 4), float(index + 1))
                if model.is_away or not torch.equal(model.layer.weight, expected):
                    wrong.append(index)
                with lock:
                    inside[index] -= 1

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(models)) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert (most[0], wrong) == (1, [])


def test_a_model_that_is_never_idle_gives_way(tmp_path: Path) -> None:
    """Two threads that overlap: the moment without a user has to be made."""
    busy, other = Model(tmp_path, 1.0), Model(tmp_path, 2.0)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            with busy.weights.on_device():
                time.sleep(0.02)

    threads = [threading.Thread(target=work) for _ in range(2)]
    threads[0].start()
    time.sleep(0.01)
    threads[1].start()
    time.sleep(0.1)
    began = time.monotonic()
    with other.weights.on_device():
        waited = time.monotonic() - began
        assert busy.is_away
    stop.set()
    for thread in threads:
        thread.join(5)
    assert waited < 1.0


def test_a_failed_move_leaves_the_turn_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Model(tmp_path, 1.0), Model(tmp_path, 2.0)
    with monkeypatch.context() as broken:
        broken.setattr(first.weights, "_wait_for_room", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError), first.weights.on_device():
            pass
    with second.on_device():
        assert not second.is_away
    with first.on_device():
        assert not first.is_away


def test_a_move_that_fails_half_way_leaves_nothing_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = OffloadedWeights(GpuTurn(tmp_path, LOG), CPU, LOG)
    with weights.loading():
        layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        weights.adopt(layers)
    other = Model(tmp_path, 1.0)
    real, made = torch.empty_like, []

    def full(*arguments: object, **options: object) -> torch.Tensor:
        made.append(real(*arguments, **options))
        if len(made) == 3:
            raise torch.OutOfMemoryError
        return made[-1]

    with monkeypatch.context() as crowded:
        crowded.setattr(torch, "empty_like", full)
        with pytest.raises(torch.OutOfMemoryError), weights.on_device():
            pass
    places = [parameter.data_ptr() for parameter in layers.parameters()]
    assert places == [tensor.data_ptr() for tensor in weights._waiting]
    with other.on_device():
        assert not other.is_away


def test_a_job_is_told_the_cost_of_its_own_uses(tmp_path: Path) -> None:
    first, second = Model(tmp_path, 1.0), Model(tmp_path, 2.0)
    with second.on_device():
        pass
    with first.weights.on_device() as moved:
        pass
    with first.weights.on_device() as stayed:
        pass
    assert (moved.moves, stayed) == (1, Moves())
    assert moved.brought_s > 0
    told = first.weights.facts(moved, stayed, Moves(1, 0.25, 0.5))["offload"]
    assert told["moves"] == 2
    assert told["waited_s"] == pytest.approx(0.25 + moved.waited_s, abs=1e-3)
    assert told["brought_s"] == pytest.approx(0.5 + moved.brought_s, abs=1e-3)
    assert ResidentWeights().facts(moved) == {}


def test_what_lies_elsewhere_stays_there(tmp_path: Path) -> None:
    weights = OffloadedWeights(GpuTurn(tmp_path, LOG), CPU, LOG)
    layer = nn.Linear(2, 2, device="meta")
    weights.adopt(layer)
    assert weights._parameters == []


@pytest.mark.parametrize(
    ("offload", "model", "expected"),
    [
        ("auto", "text_encoder", ResidentWeights),
        ("none", "text_encoder", ResidentWeights),
        ("text_encoder,dit_fl2va", "text_encoder", OffloadedWeights),
        ("text_encoder,dit_fl2va", "dit_fl2va", OffloadedWeights),
        ("text_encoder,dit_fl2va", "video_decoder", ResidentWeights),
    ],
)
def test_the_configuration_names_the_models(
    tmp_path: Path, offload: str, model: str, expected: type
) -> None:
    context = StageContext(StageConfig(offload=offload), tmp_path / model, lambda *_: {}, LOG)
    assert isinstance(device_weights(context, Placement(CPU, torch.float32)), expected)
