"""Whose turn it is on a GPU whose memory does not hold all weights at once.

Processes of one server agree through two file locks in their model repository, so that the kernel
ends the turn of a process that dies, however it dies. `turn` is held by the process whose weights
are on the device. `next` is held by the one process that waits for it; whoever holds the turn sees
by it that somebody waits.
"""

import errno
import fcntl
import logging
import os
import time
from pathlib import Path

from minimax_h3.core.errors import ConfigError

POLL_S = 0.005
_TOLD_AFTER_S = 30.0
_TURN, _NEXT = ".gpu-turn", ".gpu-turn-next"


class GpuTurn:
    """One process's view of the turn; its methods are not safe to call at the same time."""

    def __init__(self, repository: Path, log: logging.Logger) -> None:
        """Open the locks.

        Args:
            repository: the folder of all models of the server; the files are made there.
            log: told of a long wait.

        Raises:
            ConfigError: the files cannot be made there.
        """
        self._log = log
        self._turn = _opened(repository / _TURN)
        self._next = _opened(repository / _NEXT)

    def take(self) -> None:
        """Wait for the turn."""
        began = time.monotonic()
        self._wait_for(self._next, began)
        try:
            self._wait_for(self._turn, began)
        finally:
            fcntl.flock(self._next, fcntl.LOCK_UN)

    def give(self) -> None:
        """Let the next process have it; device memory must be free by now."""
        fcntl.flock(self._turn, fcntl.LOCK_UN)

    def is_wanted(self) -> bool:
        """Whether another process waits; only for the process whose turn it is."""
        if _locked(self._next):
            fcntl.flock(self._next, fcntl.LOCK_UN)
            return False
        return True

    def _wait_for(self, descriptor: int, began: float) -> None:
        told = False
        while not _locked(descriptor):
            if not told and time.monotonic() - began > _TOLD_AFTER_S:
                self._log.warning("has waited %.0f s for its turn at the GPU", _TOLD_AFTER_S)
                told = True
            time.sleep(POLL_S)


def _opened(path: Path) -> int:
    """A descriptor of this process's own; the locks of two descriptors exclude each other."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"offload: {path} cannot be made ({error.strerror}); legal: a model repository that "
            "this user may write, or offload none"
        ) from error


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True
