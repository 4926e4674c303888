"""Memory of every process of `h3 serve` over many requests.

`python -m tests.benchmarks.bench_growth CHECKPOINT [--requests 1000] [--every 100]` prints JSON:
private bytes of each process after every so many requests, and open files and regions at the end.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.server.process_memory import usage_of
from tests.server.supervised import supervised

REQUEST = {"prompt": "p", "width": 64, "height": 64, "num_frames": 107, "num_inference_steps": 3}


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--every", type=int, default=100)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        supervised(args.checkpoint, Path(folder), counting=False) as serving,
    ):
        client = serving.client()
        told: dict[int, dict[str, object]] = {}
        for count in range(1, args.requests + 1):
            client.generate(**REQUEST)
            if count % args.every == 0:
                usage = usage_of(serving.server_pid, serving.region_prefix)
                told[count] = {
                    "private_mib": {
                        name: round(size / 2**20, 2) for name, size in usage.private_bytes.items()
                    },
                    "handles": sum(usage.handles.values()),
                    "region_bytes": usage.region_bytes,
                }
                print(f"{count} requests", file=sys.stderr, flush=True)  # noqa: T201
    sys.stdout.write(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
