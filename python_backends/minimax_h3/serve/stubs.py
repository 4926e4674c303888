"""The processes behind the models: which run, and whether they live."""

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from minimax_h3.serve.installation import STUB

POLL_S = 0.02


def find_stubs(server_pid: int) -> dict[str, list[psutil.Process]]:
    """The live stub processes of a server, by model, the oldest first.

    A stub is a child of the server, through a shell that replaces itself, and its command line
    names `model.py`: `.../triton_python_backend_stub REPOSITORY/MODEL/VERSION/model.py ...`.

    Args:
        server_pid: process id of tritonserver; one that has ended has no stubs.
    """
    found: dict[str, list[psutil.Process]] = {}
    try:
        children = psutil.Process(server_pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return found
    # Process ids start again from below when they run out, so they do not tell which is older.
    for child in sorted(children, key=psutil.Process.create_time):
        model = _model_of(child)
        if model:
            found.setdefault(model, []).append(child)
    return found


def members(group: int) -> list[psutil.Process]:
    """The processes of a process group, those that lost their parent too."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getpgid(process.pid) == group:
                found.append(process)
    return found


def is_alive(process: psutil.Process) -> bool:
    """Whether the very process that was found still runs; a zombie does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """End processes at once, those that a signal has stopped too."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended by itself
            process.kill()


def wait_gone(processes: Iterable[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Wait until processes hold no memory any more.

    Returns:
        Those that still live after `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    left = [process for process in processes if is_alive(process)]
    while left and time.monotonic() < deadline:
        time.sleep(POLL_S)
        left = [process for process in left if is_alive(process)]
    return left


def _model_of(process: psutil.Process) -> str:
    """The model that a process serves, or empty when it is no live stub."""
    try:
        words = process.cmdline()  # empty, or an error, for a process that has ended
    except psutil.Error:
        return ""
    if len(words) < 2 or Path(words[0]).name != STUB:
        return ""
    return Path(words[1]).parents[1].name
