"""The server under load: perf_analyzer within its limits, `h3 load` beyond them.

Run: python -m tests.benchmarks.bench_load CHECKPOINT --perf-analyzer FILE [--json FILE]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from h3_client.client import H3Client
from h3_client.load import percentiles, report, run_load
from minimax_h3.core.config import StageConfig
from minimax_h3.serve.server_process import ServerProcess
from minimax_h3.serve.settings import ServeSettings
from tests.server.watching import seconds_when_full

FIELDS = {"width": 64, "height": 64, "num_frames": 107, "num_inference_steps": 10}
CONCURRENCY = (1, 2, 4, 8)
MODELS = {"ensemble": "minimax_h3", "stream": "minimax_h3_stream"}
NANOSECONDS = 1e-9


def perf_analyzer(binary: Path, url: str, model: str, concurrency: int, requests: int) -> dict:
    """One measurement; seconds. perf_analyzer ends with an error at the first failed request."""
    with tempfile.TemporaryDirectory() as folder:
        inputs, export = Path(folder) / "inputs.json", Path(folder) / "export.json"
        tensors: dict[str, object] = {"PROMPT": ["a red ball"]}
        tensors |= {name.upper(): [value] for name, value in FIELDS.items()}
        inputs.write_text(json.dumps({"data": [tensors]}))
        command = [str(binary), "-m", MODELS[model], "-u", url, "-i", "grpc", "--async"]
        command += ["--input-data", str(inputs), "--profile-export-file", str(export)]
        command += ["--concurrency-range", str(concurrency), "--request-count", str(requests)]
        command += ["--streaming"] if model == "stream" else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
        # The export holds the answers too, files as raw bytes inside JSON strings.
        exported = json.loads(export.read_text(encoding="latin-1"), strict=False)
        (experiment,) = exported["experiments"]
    measured = experiment["requests"]
    began = [entry["timestamp"] for entry in measured]
    first = [entry["response_timestamps"][0] for entry in measured]
    last = [entry["response_timestamps"][-1] for entry in measured]
    spent = (max(last) - min(began)) * NANOSECONDS

    def since(ends: list[int]) -> list[float]:
        return [(end - start) * NANOSECONDS for start, end in zip(began, ends, strict=True)]

    return {
        "concurrency": concurrency,
        "requests": len(measured),
        "failed": 0,
        "throughput": round(len(measured) / spent, 3),
        "latency_s": percentiles(since(last)),
        "first_event_s": percentiles(since(first)) if model == "stream" else None,
    }


def overload(client: H3Client, places: int, duration_s: float) -> dict[str, object]:
    """Ten times the capacity, against the same server full but not overloaded."""

    def send(index: int) -> None:
        client.generate("p", seed=index, **FIELDS)

    median = statistics.median(seconds_when_full(send, places, turns=5))
    rate = 10 * places / median
    told = report(run_load(send, rate, duration_s), rate, duration_s)
    latency = told["latency_s"]
    assert isinstance(latency, dict)
    return {
        "full_latency_p50_s": round(median, 4),
        "latency_ratio": round(latency["p50"] / median, 3),
        **told,
    }


def main() -> None:
    """Print the figures, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--perf-analyzer", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=24, help="per measurement")
    parser.add_argument("--overload-seconds", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    figures: dict[str, object] = {"fields": FIELDS}
    with tempfile.TemporaryDirectory() as folder:
        stage = StageConfig(checkpoint_dir=str(arguments.checkpoint.resolve()), device="cpu")
        settings = ServeSettings(
            stage=stage, run_dir=Path(folder), http_port=0, grpc_port=0, metrics_port=0
        )
        with ServerProcess(settings) as server:
            client = H3Client(server.grpc_url)
            client.generate("warm", **FIELDS)
            for model in MODELS:
                figures[model] = [
                    perf_analyzer(
                        arguments.perf_analyzer.resolve(),
                        server.grpc_url,
                        model,
                        concurrency,
                        max(arguments.requests, 2 * concurrency),
                    )
                    for concurrency in CONCURRENCY
                ]
            figures["overload"] = overload(client, stage.max_jobs, arguments.overload_seconds)
            server.kill()
    text = json.dumps(figures, indent=2) + "\n"
    sys.stdout.write(text)
    if arguments.json:
        arguments.json.write_text(text)


if __name__ == "__main__":
    main()
