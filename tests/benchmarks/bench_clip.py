"""One t2va request, prompt to MP4, on the running server and on diffusers: ratio in one run.

Run: python tests/benchmarks/bench_clip.py CHECKPOINT [--runs 5] [--json FILE]
CHECKPOINT is an official layout; the reference gets the same weights converted.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import torch

from h3_client.client import H3Client
from minimax_h3.core.config import StageConfig
from minimax_h3.media.h264 import VideoStreamEncoder
from minimax_h3.media.mp4 import mux
from minimax_h3.serve.server_process import ServerProcess
from minimax_h3.serve.settings import ServeSettings

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from oracles.diffusers_pipeline import ReferencePipeline  # noqa: E402  # a test folder, no package

REQUEST = {"width": 64, "height": 64, "num_frames": 124}
PROMPT = "a red ball bounces on a blue floor"


def reference_clip(pipeline: ReferencePipeline, seed: int) -> bytes:
    """The same clip by diffusers, encoded and muxed by the same writer."""
    clip = pipeline.generate(PROMPT, **REQUEST, num_points=50, seed=seed)
    encoder = VideoStreamEncoder(REQUEST["width"], REQUEST["height"], "veryfast", 18)
    encoder.push(clip.frames)
    return mux(encoder.finish(), clip.wave)


def measure(checkpoint: Path, runs: int) -> dict[str, object]:
    """Alternate the two, after one warm-up each; seconds per request as a client sees them."""
    with tempfile.TemporaryDirectory() as folder:
        converted = Path(folder) / "diffusers"
        convert = ["build_engines", "convert", str(checkpoint), str(converted), "--to", "diffusers"]
        subprocess.run([sys.executable, "-m", *convert], check=True, cwd=ROOT, capture_output=True)
        pipeline = ReferencePipeline(converted)
        settings = ServeSettings(
            stage=StageConfig(checkpoint_dir=str(checkpoint)),
            run_dir=Path(folder) / "run",
            http_port=0,
            grpc_port=0,
            metrics_port=0,
        )
        with ServerProcess(settings) as server:
            client = H3Client(server.grpc_url)
            ours, theirs, stages = [], [], {}
            for run in range(-1, runs):
                began = time.perf_counter()
                result = client.generate(PROMPT, seed=run + 1, **REQUEST)
                middle = time.perf_counter()
                reference_clip(pipeline, run + 1)
                if run >= 0:
                    ours.append(middle - began)
                    theirs.append(time.perf_counter() - middle)
                    stages = result.metadata["stages"]
    return {
        "ours_s": ours,
        "diffusers_s": theirs,
        "ratio": statistics.median(ours) / statistics.median(theirs),
        "stages": stages,
    }


def main() -> None:
    """Print the figures, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    figures = {
        "commit": commit.stdout.strip(),
        "cpu": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "versions": {name: version(name) for name in ("torch", "diffusers", "transformers")},
        "request": {**REQUEST, "num_points": 50},
        **measure(arguments.checkpoint.resolve(), arguments.runs),
    }
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
