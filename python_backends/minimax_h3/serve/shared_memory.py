"""Regions of this product in /dev/shm: recognised by prefix, removed when their owner is gone.

Each start holds a lock on a file of its own there, and so do all processes that it starts. A region
whose lock nobody holds was left behind by a start that was killed; the next start removes it. A
lock, unlike a process id, also tells for a server of another container that shares the folder.
"""

import fcntl
import os
from pathlib import Path
from typing import BinaryIO

SHARED_MEMORY = Path("/dev/shm")  # where the Python backend puts its regions
LOCK_PREFIX = "h3lock_"


def region_prefix(run_id: str) -> str:
    """How the regions of a start begin."""
    return f"h3_{run_id}_"


def hold(run_id: str) -> BinaryIO:
    """Lock the regions of a start; the lock ends with the last process that inherited the file."""
    file = (SHARED_MEMORY / f"{LOCK_PREFIX}{run_id}").open("wb")
    fcntl.flock(file, fcntl.LOCK_EX)
    os.set_inheritable(file.fileno(), True)
    return file


def remove(run_id: str) -> None:
    """Remove the regions of a start, and its lock."""
    for region in SHARED_MEMORY.glob(f"{region_prefix(run_id)}*"):
        region.unlink(missing_ok=True)
    (SHARED_MEMORY / f"{LOCK_PREFIX}{run_id}").unlink(missing_ok=True)


def remove_abandoned() -> list[str]:
    """Remove what killed starts left behind.

    Returns:
        Ids of those starts.
    """
    abandoned = []
    for lock in SHARED_MEMORY.glob(f"{LOCK_PREFIX}*"):
        try:
            with lock.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # held, or of another user
        run_id = lock.name.removeprefix(LOCK_PREFIX)
        remove(run_id)
        abandoned.append(run_id)
    return abandoned
