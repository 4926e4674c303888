"""`python -m h3_client.demo`: a server, one clip, its check, and nothing left running.

Speaks to the server only as any user does: `h3 serve`, `h3 generate`, `h3 check`.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from h3_client import cli

READY_TIMEOUT_S = 300.0  # a busy machine took over 120
STOP_TIMEOUT_S = 60.0
POLL_S = 0.1
PROMPT = "a red circle bounces on a blue ground"
POINTS = "20"  # where the shipped checkpoint is judged
SEED = "4"
SERVE = (sys.executable, "-m", "h3_client.cli", "serve")


class DemoError(Exception):
    """The demo could not go on; the message says where to look."""


def main(words: Sequence[str] | None = None) -> int:
    """Run the demo; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m h3_client.demo", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="checkpoint folder")
    parser.add_argument("--output", type=Path, default=Path("out/demo.mp4"))
    parser.add_argument("--run-dir", type=Path, default=Path("run"))
    args = parser.parse_args(words)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        with running_server(args.checkpoint, args.run_dir) as address:
            print(f"the server took {time.monotonic() - began:.1f} s to be ready", flush=True)
            print(f"prompt: {PROMPT}", flush=True)
            settings = ("--steps", POINTS, "--seed", SEED)
            _h3("generate", PROMPT, "-o", str(args.output), "--url", address, *settings)
            _h3("check", str(args.output))
    except KeyboardInterrupt:
        print("demo: interrupted; the server is stopped", file=sys.stderr)
        return cli.INTERRUPTED
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return cli.FAILED
    finally:
        signal.signal(signal.SIGTERM, before)
    print(f"{args.output.resolve()}  ({time.monotonic() - began:.1f} s in all, server stopped)")
    return 0


@contextmanager
def running_server(
    checkpoint: Path, run_dir: Path, options: Sequence[str] = (), *, keep_log: bool = False
) -> Iterator[str]:
    """A server of its own on free ports; gives its gRPC address, and stops it whatever happens.

    Args:
        checkpoint: checkpoint folder.
        run_dir: where the start's own folder goes.
        options: further options of `h3 serve`.
        keep_log: leave the start's folder there; after a failure it stays anyway.

    Raises:
        DemoError: it did not become ready.
    """
    folder = run_dir / f"demo-{uuid.uuid4().hex[:8]}"
    words = ["--checkpoint", str(checkpoint), "--run-dir", str(folder), "--stop-with-stdin"]
    words += options
    for service in ("http", "grpc", "metrics"):
        words += [f"--{service}-port", "0"]
    # A session of its own: Ctrl-C reaches this process only, which then stops the server in order.
    server = subprocess.Popen(
        [*SERVE, *words],
        stdin=subprocess.PIPE,  # ends with this process, whatever ends it
        start_new_session=True,
    )
    try:
        yield _address(server, folder)
    except DemoError:
        keep_log = True
        raise
    finally:
        _stop(server, folder)
        if not keep_log:
            shutil.rmtree(folder, ignore_errors=True)


def _address(server: "subprocess.Popen[bytes]", folder: Path) -> str:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        facts = _facts(folder)
        if facts.get("ready"):
            return str(facts["grpc_url"])
        if server.poll() is not None:
            raise DemoError(f"h3 serve ended with {server.returncode}; its log is under {folder}")
        time.sleep(POLL_S)
    raise DemoError(f"the server was not ready in {READY_TIMEOUT_S:g} s; log under {folder}")


def _facts(folder: Path) -> dict[str, object]:
    """What `h3 serve` wrote about its server; empty before it did."""
    for path in folder.glob("*/server.json"):
        with suppress(FileNotFoundError):  # removed by a server that just stopped
            facts: dict[str, object] = json.loads(path.read_text())
            return facts
    return {}


def _stop(server: "subprocess.Popen[bytes]", folder: Path) -> None:
    """Stop `h3 serve`, and by force it and its tritonserver when it does not go."""
    pid = _facts(folder).get("pid")
    server.terminate()
    try:
        server.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        for group in (server.pid, pid):
            if isinstance(group, int):
                with suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)
        server.wait()
    if server.stdin is not None:
        server.stdin.close()


def _h3(*words: str) -> None:
    status = cli.main(words)
    if status == cli.INTERRUPTED:
        raise KeyboardInterrupt
    if status:
        raise DemoError(f"h3 {words[0]} failed")


def interrupt(number: int, frame: FrameType | None) -> None:
    """A signal handler: SIGTERM ends a run in order, like Ctrl-C."""
    del number, frame
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
