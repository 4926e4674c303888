"""Memory of each process of `h3 serve`; and, when it is killed, seconds until its model serves.

`python -m tests.benchmarks.bench_recovery CHECKPOINT` prints JSON.
"""

import argparse
import json
import re
import sys
import time
from pathlib import Path

from h3_client.client import H3Client
from minimax_h3.core.contracts import models_of
from minimax_h3.serve.stubs import find_stubs
from tests.benchmarks.serving import line_with, serving
from tests.server.process_memory import usage_of


def main() -> None:
    """Measure every model once, idle."""
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    checkpoint = parser.parse_args().checkpoint
    sys.stdout.write(json.dumps(measure(checkpoint), indent=2) + "\n")


def measure(checkpoint: Path) -> dict[str, object]:
    """Memory after a clip, then seconds by model."""
    with serving(checkpoint) as (facts, output):
        client, pid = H3Client(str(facts["grpc_url"])), int(str(facts["pid"]))
        client.generate("a", width=64, height=64, num_inference_steps=2)
        usage = usage_of(pid, region_prefix="h3_")
        private = {name: round(size / 2**20, 1) for name, size in usage.private_bytes.items()}
        return {
            "private_mib": private,
            "recovery": {
                model: recovery(output, pid, model, client) for model in models_of("fl2va")
            },
        }


def recovery(output: Path, server_pid: int, model: str, client: H3Client) -> dict[str, float]:
    """Kill one process of a model; seconds to each of the supervisor's two lines."""
    began = time.monotonic()
    find_stubs(server_pid)[model][0].kill()
    line_with(output, f"{model}: process ")
    noticed = time.monotonic() - began
    healed = line_with(output, f"{model}: serves again")
    whole = time.monotonic() - began
    reload_s = float(re.findall(r"after ([\d.]+) s", healed)[0])
    return {
        "noticed_s": round(noticed, 2),
        "reload_s": reload_s,
        "serves_s": round(whole, 2),
        "clip_after_s": clip_seconds(client),
    }


def clip_seconds(client: H3Client) -> float:
    """A clip afterwards, so that a model that only seems to serve is found out."""
    made = client.generate("a", width=64, height=64, num_inference_steps=2)
    return round(made.seconds, 2)


if __name__ == "__main__":
    main()
