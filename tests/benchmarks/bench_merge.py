"""Does it pay to run one step of several small jobs as one forward? One forward against several.

Run: python tests/benchmarks/bench_merge.py CHECKPOINT [--json FILE]
"""

import argparse
import json
import logging
import statistics
import sys
import time
from pathlib import Path

import torch

from minimax_h3.attention.base import select
from minimax_h3.core.config import StageConfig
from minimax_h3.core.lengths import audio_latents_from_frames, latents_from_frames
from minimax_h3.dit.loading import load_transformer
from minimax_h3.packing.batch import pack_batch
from minimax_h3.packing.layout import PackedLayout, pack_keyframe_request
from minimax_h3.packing.row_times import class_times, row_times
from minimax_h3.stages.torch_device import choose_placement
from minimax_h3.weights.manifest import identify

CANVASES = ((32, 32), (64, 64), (96, 96), (128, 128), (192, 192))
FRAMES, TEXT_ROWS, RUNS = 107, 24, 9
TIMES = class_times(0.4, 0.6)


class Forwards:
    """Prepared forwards of one canvas, alone or several in one packed sequence."""

    def __init__(self, model, attention, layout: PackedLayout, jobs: int) -> None:
        config = model.config
        batch = pack_batch([layout] * jobs)
        times = row_times(batch.layout, TIMES.repeat(jobs))
        generator = torch.Generator().manual_seed(1)
        text = torch.randn(TEXT_ROWS, config.text_dim, generator=generator).repeat(jobs, 1)
        self._model = model
        self._video = torch.randn(batch.video_rows[0], 96, generator=generator).repeat(jobs, 1)
        self._audio = torch.randn(batch.audio_rows[0], 32, generator=generator).repeat(jobs, 1)
        self._prepared = model.prepare(text, batch.layout, times.index, batch.cu_seqlens, attention)
        self._modulation = model.modulation(times.times).at(torch.arange(times.times.numel()))

    def run(self):
        return self._model.step(self._video, self._audio, self._prepared, self._modulation)

    def seconds(self) -> float:
        began = time.perf_counter()
        self.run()
        return time.perf_counter() - began


def measure(model, attention, width: int, height: int) -> dict[str, float]:
    """Milliseconds of a step of one job, and what two and four jobs gain in one forward."""
    layout = pack_keyframe_request(
        torch.ones(TEXT_ROWS, dtype=torch.int64),
        latent_frames=latents_from_frames(FRAMES),
        height=height // 16,
        width=width // 16,
        audio_latents=audio_latents_from_frames(FRAMES),
        anchors=(),
    )
    forwards = {jobs: Forwards(model, attention, layout, jobs) for jobs in (1, 2, 4)}
    alone, merged = forwards[1].run(), forwards[2].run()
    rows = alone.video.shape[0]
    worst = (merged.video[:rows] - alone.video).abs().max() / alone.video.abs().max()
    seconds: dict[int, list[float]] = {jobs: [] for jobs in forwards}
    for _ in range(RUNS):  # in turn, so that a busy machine disturbs all alike
        for jobs, forward in forwards.items():
            seconds[jobs].append(forward.seconds())
    step = {jobs: statistics.median(measured) for jobs, measured in seconds.items()}
    return {
        "rows": layout.num_rows,
        "step_ms": round(step[1] * 1e3, 2),
        "gain_of_2": round(2 * step[1] / step[2], 3),
        "gain_of_4": round(4 * step[1] / step[4], 3),
        "relative_difference": float(f"{float(worst):.2g}"),
    }


def main() -> None:
    """Print the figures, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    config = StageConfig(
        checkpoint_dir=str(arguments.checkpoint.resolve()),
        device="cpu",
        cpu_threads=arguments.threads,
    )
    placement = choose_placement(config, logging.getLogger(__name__))
    manifest = identify(arguments.checkpoint.resolve(), config.task_type)
    model = load_transformer(manifest, placement.device, placement.dtype)
    attention, _ = select("sdpa", placement.device, placement.dtype, model.config.head_dim)
    with torch.inference_mode():
        figures = {
            f"{width}x{height}": measure(model, attention, width, height)
            for width, height in CANVASES
        }
    text = json.dumps(figures, indent=2) + "\n"
    sys.stdout.write(text)
    if arguments.json:
        arguments.json.write_text(text)


if __name__ == "__main__":
    main()
