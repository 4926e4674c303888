"""`h3 serve` on free ports for a benchmark."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WAIT_S = 120.0
Facts = dict[str, object]


@contextmanager
def serving(checkpoint: Path, *options: str) -> Iterator[tuple[Facts, Path]]:
    """A server on the CPU; gives its facts and the file that its output goes to."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        command = [
            *(str(Path(sys.executable).parent / "h3"), "serve", "--checkpoint", str(checkpoint)),
            *("--device", "cpu", "--run-dir", str(Path(folder) / "run"), "--grace", "0"),
            *("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", *options),
        ]
        with output.open("wb") as sink:
            server = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT)
        try:
            ready = line_with(output, " ready: ")
            yield json.loads(Path(ready.split(" facts ")[1]).read_text()), output
        finally:
            server.terminate()
            server.wait()


def line_with(output: Path, text: str) -> str:
    """Wait for a line of the server's output."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        for line in output.read_text().splitlines():
            if text in line:
                return line
        time.sleep(0.02)
    raise TimeoutError(f"no line with {text!r}:\n{output.read_text()}")
