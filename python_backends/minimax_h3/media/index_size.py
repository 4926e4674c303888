"""How large the sample index of an MP4 or MOV file would become, before anyone builds it.

A box of twenty bytes may declare billions of samples of one size, and FFmpeg spends about 70 bytes
on each: 20 million of them, in a file of 4 kB, cost 1.4 GB and 4 s.
"""

import struct
from collections.abc import Iterator

MAX_INDEX_ENTRIES = 4_000_000  # 15 s of PCM at 192 kHz are 2.9 million
COMPRESSED_HEADER = b"cmov"

_OPAQUE_BOXES = (b"mdat", b"wide")  # FFmpeg looks for no tables in them
_BOX_BYTES, _WIDE_BOX_BYTES = 8, 16


def index_entries(encoded: bytes) -> int:
    """Upper bound of the index entries that a reader would make of the file's tables.

    Tables are looked for by their tags anywhere outside the samples, so that no nesting hides one.
    """
    samples = _counts(encoded, b"stsz", at=8) + _counts(encoded, b"trun", at=4)
    edits = _counts(encoded, b"elst", at=4)  # each may repeat every sample
    return samples * max(edits, 1)


def has_compressed_header(encoded: bytes) -> bool:
    """Whether the file's header is compressed, so that its tables cannot be counted here."""
    return any(True for _ in _tables(encoded, COMPRESSED_HEADER))


def _counts(encoded: bytes, tag: bytes, at: int) -> int:
    """Sum of the 32-bit numbers at an offset of every table of one tag."""
    total = 0
    for start, end in _tables(encoded, tag):
        if start + at + 4 <= end:
            total += struct.unpack_from(">I", encoded, start + at)[0]
    return total


def _tables(encoded: bytes, tag: bytes) -> Iterator[tuple[int, int]]:
    """Start and end of the payload of every box of one tag outside the samples."""
    for start, end in _header_parts(encoded):
        at = encoded.find(tag, start + 4, end)
        while at >= 0:
            size = int.from_bytes(encoded[at - 4 : at], "big")
            payload = at + 4 + (8 if size == 1 else 0)
            if size <= 1 or size >= _BOX_BYTES:
                yield payload, max(payload, end if size <= 1 else min(end, at - 4 + size))
            at = encoded.find(tag, at + 1, end)


def _header_parts(encoded: bytes) -> Iterator[tuple[int, int]]:
    """Start and end of every top-level box that may hold tables."""
    position = 0
    while position + _BOX_BYTES <= len(encoded):
        size = int.from_bytes(encoded[position : position + 4], "big")
        least = _BOX_BYTES
        if size == 1:
            size = int.from_bytes(encoded[position + 8 : position + 16], "big")
            least = _WIDE_BOX_BYTES
        elif size == 0:
            size = len(encoded) - position
        if size < least:
            size = len(encoded) - position
        end = min(position + size, len(encoded))
        if encoded[position + 4 : position + 8] not in _OPAQUE_BOXES:
            yield position, end
        position = end
