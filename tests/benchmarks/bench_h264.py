"""H.264 behind a decoder: how long after the last decoded clip the file is done, by threading.

    python tests/benchmarks/bench_h264.py [--seconds-a-clip 0.55] [--json FILE]

124 frames of 1344x768 come in seven clips, as an H200 decodes them, for three kinds of pictures;
each is encoded by the product's encoder with x264 threads on frames of their own and on slices of
a frame.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from minimax_h3.core.constants import VAE_CLIP_FRAMES, VAE_TAIL_FRAMES
from minimax_h3.media import h264

WIDTH, HEIGHT, CLIPS = 1344, 768, 7
SHAPE = (VAE_CLIP_FRAMES + VAE_TAIL_FRAMES, HEIGHT * 3 // 2, WIDTH)  # of the last clip, planar


def pictures() -> dict[str, NDArray[np.uint8]]:
    """The last clip of each kind; earlier ones are its first frames."""
    random = np.random.default_rng(0)
    blocks = random.integers(60, 200, (SHAPE[0], SHAPE[1] // 4, WIDTH // 4), dtype=np.uint8)
    ramp = np.tile(np.linspace(30, 220, WIDTH, dtype=np.uint8), (SHAPE[1], 1))
    return {
        "noise": random.integers(0, 256, SHAPE, dtype=np.uint8),
        "soft blocks": np.kron(blocks, np.ones((1, 4, 4), np.uint8)),
        "calm": np.stack([np.roll(ramp, 3 * frame, 1) for frame in range(SHAPE[0])]),
    }


def tail(frames: NDArray[np.uint8], seconds_a_clip: float) -> tuple[float, int]:
    """Seconds from the last clip to the finished file, and its bytes."""
    with h264.ThreadedVideoEncoder(WIDTH, HEIGHT) as encoder:
        began = time.perf_counter()
        for clip in range(CLIPS):
            time.sleep(max(0.0, began + seconds_a_clip * (clip + 1) - time.perf_counter()))
            encoder.push(frames if clip == CLIPS - 1 else frames[:VAE_CLIP_FRAMES])
        decoded = began + seconds_a_clip * CLIPS
        size = len(encoder.finish())
        return time.perf_counter() - decoded, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds-a-clip", type=float, default=0.55)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    found: list[dict[str, object]] = []
    for name, frames in pictures().items():
        for kind in ("FRAME", "SLICE"):
            h264._THREAD_TYPE = kind
            seconds, size = tail(frames, arguments.seconds_a_clip)
            found.append({"picture": name, "threads": kind, "tail_s": seconds, "bytes": size})
            line = f"{cores} cores, {name}, {kind}: {seconds:.3f} s, {size / 1e6:.2f} MB"
            sys.stdout.write(line + "\n")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"cores": cores, "runs": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
