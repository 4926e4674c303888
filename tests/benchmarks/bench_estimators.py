"""How often the measuring tools are right on rendered clips after H.264 and AAC.

Run: python tests/benchmarks/bench_estimators.py [--clips 200] [--workers 2] [--json FILE]
Ctrl-C ends it early with the figures so far.
"""

import argparse
import contextlib
import json
import multiprocessing
import sys
from pathlib import Path

import torch
from tqdm import tqdm

from build_engines.evaluation.accuracy import check_clip, check_reference, shares

REQUIRED = 0.99


def check(index: int) -> dict[str, bool]:
    """One clip, and for every second index one reference."""
    torch.set_num_threads(1)
    return check_clip(index) | (check_reference(index) if index % 2 == 0 else {})


def measure(clips: int, workers: int) -> list[dict[str, bool]]:
    """Verdicts of the clips that were finished."""
    verdicts: list[dict[str, bool]] = []
    with (
        multiprocessing.get_context("spawn").Pool(workers) as pool,
        contextlib.suppress(KeyboardInterrupt),
    ):
        for verdict in tqdm(pool.imap(check, range(clips)), total=clips, unit="clip"):
            verdicts.append(verdict)  # noqa: PERF402  # what is done survives an interruption
    return verdicts


def main() -> int:
    """Print a table; the exit status is 1 if a tool is right in less than 99 %."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", nargs="?", help="as all benchmarks take it; not used")
    parser.add_argument("--clips", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    verdicts = measure(arguments.clips, arguments.workers)
    table = shares(verdicts)
    for name, row in table.items():
        sys.stdout.write(
            f"{name:<18} {row['cases']:>5.0f} cases, {100 * row['right']:.2f} % right\n"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"clips": len(verdicts), **table}, indent=1) + "\n")
    return 0 if verdicts and all(row["right"] >= REQUIRED for row in table.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
