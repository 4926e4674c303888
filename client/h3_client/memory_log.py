"""Resident memory of a server's processes over time, by `/proc` alone."""

import os
import threading
import time
from pathlib import Path
from types import TracebackType

PERIOD_S = 1.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")


class MemoryLog:
    """Writes one line a process and second while it is open: seconds, pid, name, resident bytes.

    Args:
        pid: the process whose descendants are logged with it.
        path: the tab-separated file.
    """

    def __init__(self, pid: int, path: Path) -> None:
        self._pid = pid
        self._path = path
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, name="memory-log", daemon=True)

    def __enter__(self) -> "MemoryLog":
        """Begin to log."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Log a last time and end."""
        self._stop.set()
        self._thread.join()

    def _write(self) -> None:
        began = time.monotonic()
        with self._path.open("w", encoding="utf-8") as file:
            file.write("seconds\tpid\tname\tresident_bytes\n")
            while True:
                ending = self._stop.wait(PERIOD_S)
                now = time.monotonic() - began
                for pid, name, resident in _family(self._pid):
                    file.write(f"{now:.1f}\t{pid}\t{name}\t{resident}\n")
                file.flush()
                if ending:
                    return


def _family(pid: int) -> list[tuple[int, str, int]]:
    """Process id, name and resident bytes of a process and of everything below it."""
    parents: dict[int, int] = {}
    for folder in _PROC.iterdir():
        if folder.name.isdigit() and (fields := _stat(int(folder.name))):
            parents[int(folder.name)] = int(fields[1])
    found = [pid]
    for parent in found:  # grows while it is walked: breadth first
        found += [child for child, its_parent in parents.items() if its_parent == parent]
    rows = ((one, _name(one), _resident(one)) for one in found)
    return [row for row in rows if row[2]]


def _stat(pid: int) -> list[str]:
    """Fields of `/proc/PID/stat` behind the name: state, parent, ...; empty when it has gone."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _resident(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[21]) * _PAGE_BYTES if fields else 0


def _name(pid: int) -> str:
    """The model that a stub serves, else the program's name."""
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "?"
    program = Path(words[0]).name
    if program == "triton_python_backend_stub" and len(words) > 1:
        return Path(words[1]).parents[1].name
    return program or "?"
