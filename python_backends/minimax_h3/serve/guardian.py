"""Ends a server whose `h3 serve` was killed: a process of its own that waits for that.

It reads a pipe whose write end only the starting process holds. When the pipe ends without a
farewell, that process is gone, however it ended; nothing else tells: a stub that waits for another
model's answer outlives tritonserver with its weights.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import BinaryIO

from minimax_h3.serve import shared_memory

GONE_S = 10.0  # the kernel frees the memory of a killed process in far less
POLL_S = 0.02
FAREWELL = b"stopped\n"


class Guardian:
    """The guardian of one start, from the side of the process that starts the server.

    Args:
        run_id: of the start, whose shared memory is removed.
        log: where the guardian says what it did.
    """

    def __init__(self, run_id: str, log: BinaryIO) -> None:
        # A session of its own, so that what ends ours (Ctrl-C, a lost terminal) spares it.
        self._process = subprocess.Popen(
            (sys.executable, "-P", "-m", __name__, run_id),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def watch_over(self, group: int) -> None:
        """Name the process group of the server, which ends with this process from now on."""
        self._say(b"%d\n" % group)

    def dismiss(self) -> None:
        """The server has been stopped in order: there is nothing left to end."""
        self._say(FAREWELL)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()

    def _say(self, words: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # somebody killed it: the server runs without
            self._process.stdin.write(words)
            self._process.stdin.flush()


def guard(orders: BinaryIO, run_id: str) -> None:
    """Wait for the farewell, or for the end of whoever should have sent it.

    Args:
        orders: lines: process groups, or the farewell.
        run_id: of the start.
    """
    groups: list[int] = []
    for line in orders:
        if line == FAREWELL:
            return
        groups.append(int(line))
    for group in groups:
        end_group(group)
        sys.stdout.write(f"guardian: h3 serve was killed; process group {group} is ended\n")
    shared_memory.remove(run_id)


def end_group(group: int) -> None:
    """End all processes of a group at once and wait until they are gone."""
    deadline = time.monotonic() + GONE_S
    with contextlib.suppress(ProcessLookupError):  # the last one has gone
        while time.monotonic() < deadline:
            os.killpg(group, signal.SIGKILL)
            time.sleep(POLL_S)


def main() -> None:
    """Guard until the pipe ends; a signal to all processes of a service is not meant for this."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    guard(sys.stdin.buffer, sys.argv[1])


if __name__ == "__main__":
    main()
