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
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from minimax_h3.serve import shared_memory

GONE_S = 10.0  # the kernel frees the memory of a killed process in far less
POLL_S = 0.02
RETRY_S = 1.0  # between two guardians where one did not live that long
FAREWELL = b"stopped\n"


class Guardian:
    """The guardian of one start, from the side of the process that starts the server.

    It is guarded in turn: when it is killed, another one takes over at once, during start, healing
    and stop too. Its death says nothing about the server, so no job has to suffer for it.

    Args:
        run_id: of the start, whose shared memory is removed.
        log_file: where the guardian says what it did.
        announce: is told, from another thread, when a guardian was killed.
    """

    def __init__(self, run_id: str, log_file: Path, announce: Callable[[str], None]) -> None:
        self._run_id = run_id
        self._log_file = log_file
        self._announce = announce
        self._groups: list[int] = []
        self._lock = threading.Lock()  # of the process and what it was told
        self._dismissed = threading.Event()
        self._process = self._start()
        self._keeper = threading.Thread(target=self._keep, name="guardian's keeper", daemon=True)
        self._keeper.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def watch_over(self, group: int) -> None:
        """Name the process group of the server, which ends with this process from now on."""
        with self._lock:
            self._groups.append(group)
            _say(self._process, b"%d\n" % group)

    def dismiss(self) -> None:
        """The server has been stopped in order: there is nothing left to end."""
        with self._lock:
            self._dismissed.set()
            _say(self._process, FAREWELL)
            _close(self._process)
        self._process.wait()
        self._keeper.join()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log_file.open("ab") as log:
            # A session of its own, so that what ends ours (Ctrl-C, a lost terminal) spares it.
            process = subprocess.Popen(
                (sys.executable, "-P", "-m", __name__, self._run_id),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        for group in self._groups:
            _say(process, b"%d\n" % group)
        return process

    def _keep(self) -> None:
        """Wait for the end of each guardian, and start the next one until it is dismissed."""
        while True:
            began = time.monotonic()
            status = self._process.wait()
            pause_s = RETRY_S if time.monotonic() - began < RETRY_S else 0.0
            if self._dismissed.wait(pause_s):
                return
            with self._lock:
                if self._dismissed.is_set():
                    return
                gone = f"guardian {self._process.pid} ended with {status}"
                _close(self._process)
                try:
                    self._process = self._start()
                except OSError as error:
                    self._announce(f"{gone}; no other one: {error}; trying again")
                else:
                    self._announce(f"{gone}; process {self._process.pid} took over")


def _say(process: subprocess.Popen[bytes], words: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # somebody killed it: the next one is told all
        process.stdin.write(words)
        process.stdin.flush()


def _close(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


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
