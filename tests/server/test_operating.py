"""Metrics, JSON log, traces and `h3 health` of a server that made a clip; then it is stopped.

Its steps take longer than its hang timeout; the stop, with four jobs, leaves nothing.
"""

import http.server
import json
import re
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from supervised import H3, SERVED, Supervised, supervised, wait_for

from h3_client.client import H3Client, H3ClientError
from minimax_h3.core.contracts import ENSEMBLE_STEPS, MODELS
from minimax_h3.core.metrics import METRICS
from minimax_h3.serve.stubs import find_stubs, is_alive

STEPS = 5
GRACE_S = 8.0  # the short job has company on few cores
STOP_S = 15.0
pytestmark = pytest.mark.timeout(300)

REQUEST = {"prompt": "a red ball", "width": 64, "height": 64, "num_inference_steps": STEPS}


class Collector(http.server.BaseHTTPRequestHandler):
    """An OpenTelemetry collector that keeps the spans."""

    spans: list[dict] = []  # noqa: RUF012  # one collector

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        for resource in body["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                self.spans.extend(scope["spans"])
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def collector() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def serving(
    tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, collector: str
) -> Iterator[Supervised]:
    folder = tmp_path_factory.mktemp("observed")
    words = ("--otlp-url", collector, "--log-format", "json", "--grace", f"{GRACE_S:g}")
    times = ("--test-step-delay-ms", "300", "--hang-timeout", "0.2", "--silence-timeout", "30")
    with supervised(tiny_checkpoint, folder, *words, *times) as running:
        yield running


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_client_at_the_metrics_port_hears_what_it_is(serving: Supervised, protocol) -> None:
    with (
        H3Client(serving.facts["metrics_url"], protocol) as client,
        pytest.raises(H3ClientError, match=r"speaks HTTP but not Triton's protocol.*not the metr"),
    ):
        client.generate("a fox")


@pytest.fixture(scope="module")
def job_id(serving: Supervised) -> str:
    made = serving.client().generate(**REQUEST)
    with pytest.raises(H3ClientError):
        serving.client().generate(**REQUEST | {"width": 65})
    return str(made.metadata["job_id"])


def test_every_metric_is_exported(serving: Supervised, job_id: str) -> None:
    wait_for(lambda: serving.metric("h3_jobs_ended_total", state="finished") == 1)
    assert serving.metric("h3_forwards_total", model="dit_fl2va") == STEPS - 1
    assert serving.metric("h3_step_seconds_count", model="dit_fl2va") == STEPS - 1
    assert serving.metric("h3_queue_wait_seconds_count") == 1
    assert serving.metric("h3_sessions", model="dit_fl2va") == 0
    assert serving.metric("h3_errors_total", stage="preprocess", kind="invalid_request") == 1
    for stage in set(ENSEMBLE_STEPS) - {"preprocess"}:
        assert serving.metric("h3_stage_seconds_count", stage=stage) == 1, stage
    assert serving.metric("h3_bytes_total", stage="muxer", direction="out") > 10_000
    assert serving.metric("nv_inference_request_success", model="minimax_h3") == 1
    with urllib.request.urlopen(f"http://{serving.facts['metrics_url']}/metrics") as answer:
        text = answer.read().decode()
    # Nothing was lost so far, and a family without a value is not exported.
    for name in METRICS.keys() - {"h3_workers_lost_total"}:
        assert f"# TYPE {name} {METRICS[name].kind}\n" in text


def test_the_json_log_has_the_history_of_a_job(serving: Supervised, job_id: str) -> None:
    log = Path(serving.facts["log"]).with_name("models.jsonl")
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    served = [entry for entry in entries if entry.get("job_id") == job_id]
    assert {entry["model"] for entry in served} == set(ENSEMBLE_STEPS)
    assert all(entry["message"] == "served" and entry["seconds"] >= 0 for entry in served)
    refused = [entry for entry in entries if entry.get("error_kind") == "invalid_request"]
    assert len(refused) == 1
    for line in serving.lines():
        assert json.loads(line)["source"] == "h3 serve"


def test_one_trace_has_the_ensemble_its_stages_and_their_calls(
    serving: Supervised, job_id: str
) -> None:
    def whole() -> list[list[str]]:
        traces: dict[str, list[str]] = {}
        for span in list(Collector.spans):
            traces.setdefault(span["traceId"], []).append(span["name"])
        wanted = {"minimax_h3", *ENSEMBLE_STEPS, "dit_fl2va", "jobs"}
        return [names for names in traces.values() if wanted <= set(names)]

    wait_for(whole, 30)
    (names,) = whole()
    assert names.count("dit_fl2va") >= STEPS - 1 + 2  # steps, start and end


def test_every_process_loads_its_model_once(serving: Supervised, job_id: str) -> None:
    """Loading the ensemble must not load the weights of its models again."""
    log = Path(serving.facts["log"]).read_text()
    for model in SERVED:
        spec = MODELS[model]
        assert len(re.findall(rf"{model}: loaded as {model}_0_\d+:", log)) == spec.instances


def test_health_asks_every_model(serving: Supervised, job_id: str) -> None:
    words = [str(H3), "health", "--url", serving.facts["http_url"], "--timeout", "3"]
    healthy = subprocess.run(words, capture_output=True, text=True, check=False)
    assert healthy.returncode == 0, healthy.stdout
    assert healthy.stdout.splitlines() == [
        "jobs: answers",
        *(f"{model}: answers" for model in sorted({*SERVED} - {"jobs"})),
    ]
    nobody = subprocess.run(
        [str(H3), "health", "--url", "127.0.0.1:9"], capture_output=True, text=True, check=False
    )
    assert nobody.returncode == 1


def test_a_long_step_is_no_hang_and_a_stop_with_four_jobs_is_clean(serving: Supervised) -> None:
    """The last of this file: the server is stopped."""
    with ThreadPoolExecutor(5) as pool:
        before = serving.says("new process")
        serving.client().generate(**REQUEST)
        assert serving.says("new process") == before  # a busy worker is never taken for dead
        steps = {"short": 2, "long-a": 50, "long-b": 50, "long-c": 50}
        jobs = {
            name: pool.submit(
                lambda name=name, count=count: serving.client().generate(
                    **REQUEST | {"num_inference_steps": count}, request_id=name
                )
            )
            for name, count in steps.items()
        }
        wait_for(lambda: len([job for job in serving.client().jobs() if job["dit"]]) == 4)
        family = [stub for stubs in find_stubs(serving.server_pid).values() for stub in stubs]
        family.append(psutil.Process(serving.server_pid))
        serving.close()

        began = time.monotonic()
        serving.process.send_signal(signal.SIGTERM)
        wait_for(lambda: serving.says("jobs get up to"), 5)
        with pytest.raises(H3ClientError) as late:
            serving.client().generate(**REQUEST)
        assert late.value.status == "UNAVAILABLE"
        assert "stopping" in late.value.message
        assert jobs["short"].result(GRACE_S).mp4
        for name in ("long-a", "long-b", "long-c"):
            with pytest.raises(H3ClientError) as cancelled:
                jobs[name].result(GRACE_S + STOP_S)
            assert cancelled.value.status == "CANCELLED"
        assert serving.process.wait(GRACE_S + STOP_S) == 0
        assert time.monotonic() - began < GRACE_S + STOP_S
        assert json.loads(serving.lines()[-1])["message"] == "stopped"
        assert not any(is_alive(process) for process in family)
        run_id = serving.region_prefix.split("_")[1]
        assert not [file for file in Path("/dev/shm").iterdir() if run_id in file.name]
