"""Resident memory, open files and shared memory of a running server, process by process."""

from dataclasses import dataclass
from pathlib import Path

import psutil

from minimax_h3.serve.stubs import find_stubs

SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Usage:
    """What the processes of a server hold at one moment, by a name that a person reads.

    Attributes:
        private_bytes: memory of each process that it shares with nobody; `tritonserver`, or
            `model pid`.
        handles: open file descriptors of each.
        region_bytes: all regions of the server in /dev/shm.
    """

    private_bytes: dict[str, int]
    handles: dict[str, int]
    region_bytes: int


def usage_of(server_pid: int, region_prefix: str) -> Usage:
    """Measure a server.

    Args:
        server_pid: process id of tritonserver.
        region_prefix: how its regions in /dev/shm begin.
    """
    family = {"tritonserver": psutil.Process(server_pid)}
    for model, stubs in find_stubs(server_pid).items():
        family |= {f"{model} {stub.pid}": stub for stub in stubs}
    return Usage(
        private_bytes={name: process.memory_full_info().uss for name, process in family.items()},
        handles={name: process.num_fds() for name, process in family.items()},
        region_bytes=sum(file.stat().st_size for file in SHARED_MEMORY.glob(f"{region_prefix}*")),
    )


def growth(before: Usage, after: Usage, share: float) -> dict[str, object]:
    """What grew by more than a share of itself; empty when all is flat.

    Processes that are new or gone are named too.
    """
    grown: dict[str, object] = {
        name: (before.private_bytes[name], after.private_bytes[name])
        for name in before.private_bytes.keys() & after.private_bytes.keys()
        if after.private_bytes[name] > before.private_bytes[name] * (1 + share)
    }
    grown |= {
        f"handles of {name}": (before.handles[name], after.handles[name])
        for name in before.handles.keys() & after.handles.keys()
        if after.handles[name] > before.handles[name]
    }
    if after.region_bytes > before.region_bytes:
        grown["/dev/shm"] = (before.region_bytes, after.region_bytes)
    grown |= dict.fromkeys(
        before.private_bytes.keys() ^ after.private_bytes.keys(), "appeared or died"
    )
    return grown
