"""Top-level boxes of an MP4 file, read without trusting it."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_MAX_BOXES = 1024
_HEADER_BYTES, _WIDE_HEADER_BYTES = 8, 16


@dataclass(frozen=True, slots=True)
class BoxWalk:
    """What a walk over the top level found.

    Attributes:
        kinds: four-character types in file order.
        problem: why the walk stopped before the end of the file, or empty.
    """

    kinds: tuple[str, ...]
    problem: str

    @property
    def moov_first(self) -> bool:
        """Whether `moov` comes before `mdat`, so that the file plays while it loads."""
        return (
            "moov" in self.kinds
            and "mdat" in self.kinds
            and (self.kinds.index("moov") < self.kinds.index("mdat"))
        )


def walk_boxes(source: Path | bytes) -> BoxWalk:
    """List the top-level boxes of a file or of bytes.

    Raises:
        OSError: the file cannot be read.
    """
    if isinstance(source, bytes):
        return _walk(io.BytesIO(source), len(source))
    with source.open("rb") as file:
        return _walk(file, source.stat().st_size)


def _walk(file: BinaryIO, size: int) -> BoxWalk:
    kinds: list[str] = []
    position = 0
    while position < size:
        if len(kinds) == _MAX_BOXES:
            return BoxWalk(tuple(kinds), f"more than {_MAX_BOXES} boxes")
        file.seek(position)
        header = file.read(_WIDE_HEADER_BYTES)
        length = int.from_bytes(header[:4], "big")
        least = _HEADER_BYTES
        if length == 1:  # a 64-bit length follows the type
            length, least = int.from_bytes(header[8:16], "big"), _WIDE_HEADER_BYTES
        elif length == 0:  # up to the end of the file
            length = size - position
        if len(header) < least or length < least:
            return BoxWalk(tuple(kinds), f"no box at byte {position}")
        kinds.append(header[4:8].decode("latin-1"))
        position += length
    problem = f"{kinds[-1]} ends {position - size} bytes behind the file" if position > size else ""
    return BoxWalk(tuple(kinds), problem if size else "empty file")
