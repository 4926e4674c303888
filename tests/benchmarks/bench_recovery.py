"""Memory of each process of `h3 serve`; and, when it is killed, seconds until its model serves.

`python -m tests.benchmarks.bench_recovery CHECKPOINT` prints JSON.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from h3_client.client import H3Client
from minimax_h3.core.contracts import models_of
from minimax_h3.serve.stubs import find_stubs
from tests.server.process_memory import usage_of

WAIT_S = 120.0


def main() -> None:
    """Measure every model once, idle."""
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    checkpoint = parser.parse_args().checkpoint
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write(json.dumps(measure(checkpoint, Path(folder)), indent=2) + "\n")


def measure(checkpoint: Path, folder: Path) -> dict[str, object]:
    """Memory after a clip, then seconds by model."""
    output = folder / "output"
    command = [
        *(str(Path(sys.executable).parent / "h3"), "serve", "--checkpoint", str(checkpoint)),
        *("--device", "cpu", "--run-dir", str(folder / "run"), "--grace", "0"),
        *("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"),
    ]
    with output.open("wb") as sink:
        server = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT)
    try:
        ready = line_with(output, " ready: ")
        facts = json.loads(Path(ready.split(" facts ")[1]).read_text())
        client = H3Client(facts["grpc_url"])
        client.generate("a", width=64, height=64, num_inference_steps=2)
        usage = usage_of(facts["pid"], region_prefix="h3_")
        private = {name: round(size / 2**20, 1) for name, size in usage.private_bytes.items()}
        return {
            "private_mib": private,
            "recovery": {
                model: recovery(output, facts["pid"], model, client) for model in models_of("fl2va")
            },
        }
    finally:
        server.terminate()
        server.wait()


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


def line_with(output: Path, text: str) -> str:
    """Wait for a line of the server's output."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        for line in output.read_text().splitlines():
            if text in line:
                return line
        time.sleep(0.02)
    raise TimeoutError(f"no line with {text!r}:\n{output.read_text()}")


if __name__ == "__main__":
    main()
