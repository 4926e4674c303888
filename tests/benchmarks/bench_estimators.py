"""How often the measuring tools are right on rendered clips after H.264 and AAC.

Run: python tests/benchmarks/bench_estimators.py [--clips 200] [--json FILE]
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from tqdm import tqdm

from build_engines.evaluation.accuracy import check_clip, check_reference, shares

REQUIRED = 0.99


def main() -> int:
    """Print a table; the exit status is 1 if a tool is right in less than 99 %."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", nargs="?", help="as all benchmarks take it; not used")
    parser.add_argument("--clips", type=int, default=200)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    numbers = tqdm(range(arguments.clips), unit="clip")
    table = shares(check_clip(index) for index in numbers)
    table |= shares(check_reference(index) for index in range(arguments.clips // 2))
    for name, row in table.items():
        sys.stdout.write(
            f"{name:<18} {row['cases']:>5.0f} cases, {100 * row['right']:.2f} % right\n"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"clips": arguments.clips, **table}, indent=1) + "\n")
    return 0 if all(row["right"] >= REQUIRED for row in table.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
