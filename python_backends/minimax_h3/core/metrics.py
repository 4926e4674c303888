"""Every metric of the product, and how a stage reports one.

Families of one name are shared by all processes of a server: their counts add up, and a new process
goes on where a dead one stopped. Triton exports them beside its own at the metrics port.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

# Bounds in seconds: a refusal takes a millisecond, a full-size stage half an hour.
WAIT_BUCKETS = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)
STAGE_BUCKETS = (0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)
STEP_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric family.

    Attributes:
        name: as Prometheus sees it; a histogram adds `_bucket`, `_sum` and `_count`.
        kind: counter, gauge or histogram.
        meaning: what it counts, with units.
        labels: names of its labels.
        buckets: upper bounds of a histogram.
    """

    name: str
    kind: str
    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_METRICS = (
    MetricSpec("h3_jobs", GAUGE, "Unfinished jobs by state: queued, waiting, running", ("state",)),
    MetricSpec(
        "h3_jobs_ended_total",
        COUNTER,
        "Jobs that ended, by state and by the kind of their error, if any",
        ("state", "kind"),
    ),
    MetricSpec("h3_sessions", GAUGE, "Sessions that the DiT holds", ("model",)),
    MetricSpec(
        "h3_queue_wait_seconds",
        HISTOGRAM,
        "Seconds from the end of encoding to the first turn at the DiT",
        buckets=WAIT_BUCKETS,
    ),
    MetricSpec(
        "h3_stage_seconds",
        HISTOGRAM,
        "Seconds a model of the ensemble spent on a request",
        ("stage",),
        STAGE_BUCKETS,
    ),
    MetricSpec("h3_step_seconds", HISTOGRAM, "Seconds of a DiT step", ("model",), STEP_BUCKETS),
    MetricSpec("h3_forwards_total", COUNTER, "Forwards of the DiT", ("model",)),
    MetricSpec(
        "h3_bytes_total",
        COUNTER,
        "Bytes of tensors that a model of the ensemble took (in) and gave (out)",
        ("stage", "direction"),
    ),
    MetricSpec(
        "h3_errors_total",
        COUNTER,
        "Requests that a model refused or failed",
        ("stage", "kind"),
    ),
    MetricSpec(
        "h3_workers_lost_total", COUNTER, "Models that got a new process under watch", ("model",)
    ),
)
METRICS: Mapping[str, MetricSpec] = MappingProxyType({metric.name: metric for metric in _METRICS})


class Meter(Protocol):
    """Where a stage reports what it did; a report costs it microseconds."""

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Raise a counter."""
        ...

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        ...

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add a value to a histogram."""
        ...


class NoMeter:
    """A `Meter` that keeps nothing."""

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Keep nothing."""

    def set(self, name: str, value: float, **labels: str) -> None:
        """Keep nothing."""

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Keep nothing."""


NO_METER = NoMeter()
