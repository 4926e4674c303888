"""Memory of each process of `h3 serve`; and, when it is killed, seconds until its model serves.

`python -m tests.benchmarks.bench_recovery CHECKPOINT` prints JSON.
"""

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path

from minimax_h3.core.contracts import models_of
from tests.server.process_memory import usage_of
from tests.server.supervised import Supervised, supervised, wait_for

WAIT_S = 120.0
REQUEST = {"prompt": "a", "width": 64, "height": 64, "num_inference_steps": 2}


def main() -> None:
    """Measure every model once, idle."""
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    checkpoint = parser.parse_args().checkpoint
    sys.stdout.write(json.dumps(measure(checkpoint), indent=2) + "\n")


def measure(checkpoint: Path) -> dict[str, object]:
    """Memory after a clip, then seconds by model."""
    with (
        tempfile.TemporaryDirectory() as folder,
        supervised(checkpoint, Path(folder), counting=False) as serving,
    ):
        serving.client().generate(**REQUEST)
        usage = usage_of(serving.server_pid, serving.region_prefix)
        private = {name: round(size / 2**20, 1) for name, size in usage.private_bytes.items()}
        return {
            "private_mib": private,
            "recovery": {model: recovery(serving, model) for model in models_of("fl2va")},
        }


def recovery(serving: Supervised, model: str) -> dict[str, float]:
    """Kill one process of a model; seconds to each of the supervisor's two lines."""
    serving.stubs(model)[0].kill()
    noticed = wait_for(lambda: serving.says(f"{model}: process "), WAIT_S)
    whole = noticed + wait_for(lambda: serving.says(f"{model}: serves again"), WAIT_S)
    healed = next(line for line in serving.lines() if f"{model}: serves again" in line)
    return {
        "noticed_s": round(noticed, 2),
        "reload_s": float(re.findall(r"after ([\d.]+) s", healed)[0]),
        "serves_s": round(whole, 2),
        # A clip afterwards, so that a model that only seems to serve is found out.
        "clip_after_s": round(serving.client().generate(**REQUEST).seconds, 2),
    }


if __name__ == "__main__":
    main()
