"""Reports reach the server's families, from any thread."""

import gc
import logging
import time
from collections.abc import Iterator

import pytest
from fakes import pb_utils

from minimax_h3.core.metrics import COUNTER, GAUGE, HISTOGRAM, METRICS, NO_METER
from minimax_h3.triton_io.meter import TritonMeter


@pytest.fixture(autouse=True)
def reported() -> Iterator[dict]:
    pb_utils.MetricFamily.reported.clear()
    yield pb_utils.MetricFamily.reported
    pb_utils.MetricFamily.reported.clear()


def test_each_kind_of_metric(reported: dict) -> None:
    meter = TritonMeter()
    meter.add("h3_forwards_total", model="dit_fl2va")
    meter.add("h3_errors_total", 2.0, kind="capacity", stage="preprocess")
    meter.set("h3_jobs", 3, state="running")
    meter.observe("h3_queue_wait_seconds", 0.5)
    meter.close()
    assert reported == {
        ("h3_forwards_total", ("dit_fl2va",)): [1.0],
        ("h3_errors_total", ("capacity", "preprocess")): [2.0],
        ("h3_jobs", ("running",)): [3],
        ("h3_queue_wait_seconds", ()): [0.5],
    }


def test_a_report_does_not_wait_for_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(self: object, **more: object) -> pb_utils.Metric:
        time.sleep(0.3)
        return pb_utils.Metric([])

    monkeypatch.setattr(pb_utils.MetricFamily, "Metric", slow)
    meter = TritonMeter()
    began = time.monotonic()
    meter.add("h3_forwards_total", model="m")
    assert time.monotonic() - began < 0.1
    meter.close()


def test_a_value_that_the_server_refuses_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: object, **more: object) -> None:
        raise pb_utils.TritonModelException("metrics are off")

    monkeypatch.setattr(pb_utils.MetricFamily, "Metric", refuse)
    with caplog.at_level(logging.WARNING):
        meter = TritonMeter()
        meter.add("h3_forwards_total", model="m")
        meter.close()
    assert "h3_forwards_total was dropped: metrics are off" in caplog.text


def test_a_wrong_label_is_a_bug() -> None:
    meter = TritonMeter()
    with pytest.raises(AssertionError):
        meter.add("h3_forwards_total", stage="m")
    with pytest.raises(KeyError):
        meter.add("h3_nothing_total")
    meter.close()


def test_the_table_is_well_formed() -> None:
    for name, spec in METRICS.items():
        assert spec.kind in (COUNTER, GAUGE, HISTOGRAM)
        assert name.endswith("_total") == (spec.kind == COUNTER)
        assert name.endswith("_seconds") == (spec.kind == HISTOGRAM)
        assert bool(spec.buckets) == (spec.kind == HISTOGRAM)
        assert list(spec.buckets) == sorted(set(spec.buckets))
    NO_METER.add("h3_forwards_total")
    NO_METER.set("h3_jobs", 1.0)
    NO_METER.observe("h3_step_seconds", 1.0)


def test_the_end_of_a_process_frees_no_metric_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    freed = []

    class Family(pb_utils.MetricFamily):
        def __del__(self) -> None:
            freed.append(self)

        def Metric(self, **more: object) -> pb_utils.Metric:  # noqa: N802  # the library's name
            class Metric(pb_utils.Metric):
                def __del__(self) -> None:
                    freed.append(self)

            return Metric([])

    monkeypatch.setattr(pb_utils, "MetricFamily", Family)
    meter = TritonMeter()
    meter.observe("h3_queue_wait_seconds", 0.5)
    meter.close()
    del meter
    gc.collect()
    assert freed == []
