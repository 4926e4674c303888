"""What the server adds to the work: calls per step, whole requests, refusals, the prompt's wire.

Run: python tests/benchmarks/bench_overhead.py CHECKPOINT [--json FILE]
"""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from h3_client.client import H3Client, H3ClientError
from minimax_h3.core.config import StageConfig
from minimax_h3.serve.server_process import ServerProcess
from minimax_h3.serve.settings import ServeSettings

SMALL = {"width": 64, "height": 64, "num_frames": 124}
BAD = {
    "empty prompt": {"prompt": ""},
    "1080x1920": {"width": 1080, "height": 1920},
    "fps 24.9": {"fps": 24.9},
    "duration 3.9": {"duration": 3.9},
    "duration NaN": {"duration": float("nan")},
    "1 step": {"num_inference_steps": 1},
    "unknown field": {"refrences": 1},
    "task not loaded": {"task": "ref2va"},
}


@contextlib.contextmanager
def serving(checkpoint: Path, **stage: float) -> Iterator[H3Client]:
    """A server of this measurement's own."""
    with tempfile.TemporaryDirectory() as folder:
        settings = ServeSettings(
            stage=StageConfig(checkpoint_dir=str(checkpoint), device="cpu", **stage),
            run_dir=Path(folder),
            http_port=0,
            grpc_port=0,
            metrics_port=0,
        )
        with ServerProcess(settings) as server:
            yield H3Client(server.grpc_url)
            server.kill()


def milliseconds(seconds: list[float]) -> float:
    return round(statistics.median(seconds) * 1e3, 3)


def calls_per_step(client: H3Client) -> dict[str, float]:
    """Medians over five warm requests of 49 forwards."""
    runs = [
        client.generate("p", seed=seed, **SMALL).metadata["stages"]["denoiser"] for seed in range(6)
    ][1:]
    return {
        "calls_per_step": runs[0]["calls_per_step"],
        "dit_call_overhead_ms": milliseconds([run["dit_call_overhead_s"] for run in runs]),
        "jobs_call_ms": milliseconds([run["jobs_call_s"] for run in runs]),
    }


def refusals(client: H3Client) -> dict[str, float]:
    """Milliseconds until a bad request is refused, as the client sees it; median of 20."""
    figures = {}
    for name, fields in BAD.items():
        seconds = []
        for _ in range(20):
            merged = {"prompt": "p"} | SMALL | fields
            if "duration" in fields:
                del merged["num_frames"]
            began = time.perf_counter()
            with contextlib.suppress(H3ClientError):
                client.generate(**merged)
                raise SystemExit(f"{name} was accepted")
            seconds.append(time.perf_counter() - began)
        figures[name] = milliseconds(seconds)
    return figures


def whole_request(checkpoint: Path) -> dict[str, float]:
    """Share of a request's wall time that no stage computed, with a step of 20 ms."""
    shares, walls = [], []
    with serving(checkpoint, test_step_delay_ms=20) as client:
        for seed in range(6):
            began = time.perf_counter()
            stages = client.generate("p", seed=seed, **SMALL).metadata["stages"]
            wall_s = time.perf_counter() - began
            decoders = (stages["video_decoder"]["seconds"], stages["audio_decoder"]["seconds"])
            compute_s = (
                stages["preprocess"]["seconds"]
                + stages["text_encoder"]["seconds"]
                + stages["denoiser"]["compute_s"]
                + max(decoders)
                + stages["muxer"]["seconds"]
            )
            walls.append(wall_s)
            shares.append(1 - compute_s / wall_s)
    return {
        "wall_s": round(statistics.median(walls[1:]), 3),
        "non_compute_share": round(statistics.median(shares[1:]), 4),
    }


def prompt_wire() -> dict[str, float]:
    """Milliseconds to copy a prompt's embeddings once, 662 tokens of 5120, FP32 against BF16."""
    figures = {}
    for name, size in (("fp32", 4), ("bf16", 2)):
        source = np.zeros(662 * 5120 * size, np.uint8)
        target = np.empty_like(source)
        seconds = []
        for _ in range(20):
            began = time.perf_counter()
            np.copyto(target, source)
            seconds.append(time.perf_counter() - began)
        figures[name] = milliseconds(seconds)
    return figures


def main() -> None:
    """Print the figures, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    checkpoint = arguments.checkpoint.resolve()
    with serving(checkpoint) as client:
        figures: dict[str, object] = {
            "step": calls_per_step(client),
            "refusal_ms": refusals(client),
        }
    figures["request_with_20_ms_steps"] = whole_request(checkpoint)
    figures["prompt_copy_ms"] = prompt_wire()
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
