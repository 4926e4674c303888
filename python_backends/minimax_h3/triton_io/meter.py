"""The `Meter` of a stage inside Triton: its reports end at the server's metrics port."""

import ctypes
import logging
import queue
import threading
from typing import Any

import triton_python_backend_utils as pb_utils

from minimax_h3.core.metrics import COUNTER, GAUGE, HISTOGRAM, METRICS, MetricSpec

KINDS = {COUNTER: "COUNTER", GAUGE: "GAUGE", HISTOGRAM: "HISTOGRAM"}
VERBS = {COUNTER: "increment", GAUGE: "set", HISTOGRAM: "observe"}
# Reports hold the interpreter's lock while they wait for the server. In batches they delay one call
# in many instead of each a little: a step's median call was above 1 ms before, and is below it so.
BATCH_S = 0.2
MAX_WAITING = 100_000  # reports; a thread that cannot keep up must not fill the memory

_log = logging.getLogger(__name__)


class TritonMeter:
    """Takes reports from any thread and hands them to the server from a thread of its own.

    A report is a round trip to the server, 50 to 270 us each; a step shall not wait for it.
    """

    def __init__(self) -> None:
        self._reports: queue.Queue[tuple[str, float, dict[str, str]] | None] = queue.Queue(
            MAX_WAITING
        )
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="meter", daemon=True)
        self._thread.start()

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Raise a counter."""
        self._put(name, amount, labels)

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._put(name, value, labels)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add a value to a histogram."""
        self._put(name, value, labels)

    def close(self) -> None:
        """Hand over what waits, and end the thread."""
        self._closed.set()
        self._reports.put(None)
        self._thread.join()

    def _put(self, name: str, value: float, labels: dict[str, str]) -> None:
        spec = METRICS[name]
        assert labels.keys() == set(spec.labels), (name, labels)
        try:
            self._reports.put_nowait((name, value, labels))
        except queue.Full:
            _log.warning("a value of %s was dropped: the server takes no metrics", name)

    def _work(self) -> None:
        families = _Families()
        while (report := self._reports.get()) is not None:
            if self._reports.empty():  # the first of a batch
                self._closed.wait(BATCH_S)
            families.report(*report)


class _Families:
    """Families and metrics of this process, each made at its first value and never given back.

    Processes that report the same metric share one object of the server. Server 2.51 counts its
    users for each process apart, so the first that unloads frees it under the others: counters go
    back to zero, and the next value of a histogram ends the server with a segmentation fault.
    """

    def __init__(self) -> None:
        self._families: dict[str, Any] = {}
        self._metrics: dict[tuple[str, tuple[str, ...]], Any] = {}

    def report(self, name: str, value: float, labels: dict[str, str]) -> None:
        """Hand one value to the server; one that it refuses is logged and dropped."""
        spec = METRICS[name]
        try:
            metric = self._metric(spec, labels)
            getattr(metric, VERBS[spec.kind])(value)
        except pb_utils.TritonModelException as error:
            _log.warning("a value of %s was dropped: %s", name, error)

    def _metric(self, spec: MetricSpec, labels: dict[str, str]) -> Any:
        key = spec.name, tuple(labels[label] for label in spec.labels)
        if key not in self._metrics:
            if spec.name not in self._families:
                self._families[spec.name] = _never_freed(
                    pb_utils.MetricFamily(
                        name=spec.name,
                        description=spec.meaning,
                        kind=getattr(pb_utils.MetricFamily, KINDS[spec.kind]),
                    )
                )
            more = {"buckets": list(spec.buckets)} if spec.buckets else {}
            metric = self._families[spec.name].Metric(labels=labels, **more)
            self._metrics[key] = _never_freed(metric)
        return self._metrics[key]


def _never_freed(made: Any) -> Any:
    """The same object, which even the end of the interpreter does not destroy."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
    return made
