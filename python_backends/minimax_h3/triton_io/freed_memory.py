"""Memory that loading a stage freed, and that the C library keeps for later."""

import ctypes
from contextlib import suppress


def return_freed_memory() -> None:
    """Give freed memory back to the system.

    Loading weights frees what it read them through, in pieces between others that live on. glibc
    keeps such pieces: up to 70 MB beside a DiT of 0.6 GB, another amount at each start. Other C
    libraries have no such call and need none.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
