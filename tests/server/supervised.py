"""`h3 serve` as a process of its own, watched from outside."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from h3_client.client import H3Client
from minimax_h3.core.contracts import MODELS, models_of
from minimax_h3.serve.stubs import find_stubs

SERVED = models_of("fl2va")  # what a supervised server holds

HANGING_STEP = 60  # of the server that tests share: no other test asks for as many

READY = "ready: HTTP"
READY_S = 180.0  # a busy machine; a quiet one needs 10
H3 = Path(sys.executable).parent / "h3"


class Supervised:
    """A running `h3 serve`.

    Attributes:
        process: of `h3 serve` itself.
        facts: its facts file, as first written.
        most: largest number of processes that each model has had at the same time.
    """

    def __init__(self, process: subprocess.Popen, output: Path, *, counting: bool = True) -> None:
        self.process, self.output = process, output
        wait_for(lambda: self.says(READY) or process.poll() is not None, READY_S)
        assert self.says(READY), output.read_text()
        ready = next(line for line in self.lines() if READY in line)
        facts_file = re.search(r" facts ([^\s\"]+)", ready)
        self.facts = json.loads(Path(facts_file[1]).read_text())
        self.most: dict[str, int] = {}
        self._watched = threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        if counting:
            self._watcher.start()

    def close(self) -> None:
        self._watched.set()
        if self._watcher.is_alive():
            self._watcher.join()

    @property
    def server_pid(self) -> int:
        return int(self.facts["pid"])

    @property
    def region_prefix(self) -> str:
        flag = next(flag for flag in self.facts["command"] if "shm-region" in flag)
        return flag.split("=")[-1]

    def client(self) -> H3Client:
        return H3Client(self.facts["grpc_url"])

    def lines(self) -> list[str]:
        return self.output.read_text().splitlines()

    def says(self, text: str) -> int:
        """How many lines of the output have a text."""
        return sum(text in line for line in self.lines())

    def stubs(self, model: str) -> list[psutil.Process]:
        return find_stubs(self.server_pid).get(model, [])

    def sessions(self) -> int:
        """Sessions that the DiT holds, by its metric."""
        return int(self.metric("h3_sessions", model="dit_fl2va"))

    def metric(self, name: str, **labels: str) -> float:
        """A value at the metrics port; 0 when there is none yet."""
        import urllib.request

        wanted = {f'{label}="{value}"' for label, value in labels.items()}
        with urllib.request.urlopen(f"http://{self.facts['metrics_url']}/metrics") as answer:
            for line in answer.read().decode().splitlines():
                family, _, rest = line.partition("{")
                if family.split(" ")[0] != name:
                    continue
                given = set(rest.partition("}")[0].split(",")) if rest else set()
                if wanted <= given:
                    return float(line.rsplit(" ", 1)[1])
        return 0.0

    def _watch(self) -> None:
        while not self._watched.wait(0.1):
            for model, stubs in find_stubs(self.server_pid).items():
                self.most[model] = max(self.most.get(model, 0), len(stubs))


def wait_for(condition: Callable[[], object], seconds: float = 30.0) -> float:
    """Wait until something holds; returns the seconds it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, condition
        time.sleep(0.05)
    return time.monotonic() - began


@contextmanager
def supervised(
    checkpoint: Path, folder: Path, *words: str, counting: bool = True
) -> Iterator[Supervised]:
    """Run `h3 serve` on free ports; it is stopped, and with everything it started, at the end.

    `counting` fills `Supervised.most`, at a price that a benchmark would see.
    """
    output = folder / "output"
    command = [
        *(str(H3), "serve", "--checkpoint", str(checkpoint), "--device", "cpu"),
        *("--run-dir", str(folder / "run"), "--grace", "0"),
        *("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"),
        *words,
    ]
    with output.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT)
    running = None
    try:
        running = Supervised(process, output, counting=counting)
        yield running
    finally:
        if running is not None:
            running.close()
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)  # at once
        process.wait(60)


def single_instance_models() -> list[str]:
    """Models that must never have two processes."""
    return [name for name in SERVED if MODELS[name].instances == 1]
