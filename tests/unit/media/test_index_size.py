import struct

import pytest
from source_samples import Clip, tones, video

from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.media.facts import inspect
from minimax_h3.media.index_size import MAX_INDEX_ENTRIES, index_entries

NAME = "references[0]"
CLIP = Clip(frames=50, width=64, height=48, sound=tones(2.1))


def with_number(data: bytes, tag: bytes, at: int, number: int) -> bytes:
    """The file with a 32-bit number written into the first table of a tag."""
    where = data.index(tag) + 4 + at
    return data[:where] + struct.pack(">I", number) + data[where + 4 :]


def test_the_index_of_a_common_file_is_a_few_entries_a_frame():
    assert 50 <= index_entries(video(CLIP)) < 1_000
    assert 50 <= index_entries(video(Clip(frames=50, fragmented=True))) < 1_000
    pcm = Clip(frames=50, form="mov", sound=tones(2.1), sound_codec="pcm_s16le")
    assert index_entries(video(pcm)) < MAX_INDEX_ENTRIES / 10


@pytest.mark.parametrize(
    ("tag", "at", "fragmented"), [(b"stsz", 8, False), (b"elst", 4, False), (b"trun", 4, True)]
)
@pytest.mark.parametrize("number", [20_000_000, 0xFFFFFFFF])
def test_an_index_that_fills_memory_is_refused_before_it_is_built(tag, at, fragmented, number):
    data = video(Clip(frames=50, sound=tones(2.1), fragmented=fragmented))
    hostile = with_number(data, tag, at, number)
    with pytest.raises(InvalidRequestError, match=r"references\[0\]: .*samples.* up to 4,000,000"):
        inspect(hostile, NAME)


def test_nesting_hides_no_table():
    """A table in an unusual place, with a 64-bit size, is counted too."""
    table = b"\0\0\0\1stsz" + struct.pack(">QIII", 36, 0, 1, 2**31) + bytes(8)
    box = struct.pack(">I", 8 + len(table)) + b"udta" + table
    data = video(CLIP) + box
    assert index_entries(data) > 2**31


def test_samples_are_no_tables():
    """The bytes of a table inside the samples mean nothing."""
    data = video(CLIP)
    where = data.index(b"mdat") + 200
    table = b"\0\0\0\x14stsz" + struct.pack(">III", 0, 1, 2**31)
    assert index_entries(data[:where] + table + data[where + len(table) :]) == index_entries(data)


def test_a_compressed_header_is_refused():
    data = video(CLIP)
    hostile = data + struct.pack(">I", 24) + b"moov" + struct.pack(">I", 16) + b"cmov" + bytes(8)
    with pytest.raises(InvalidRequestError, match=r"references\[0\]: MP4 with a compressed header"):
        inspect(hostile, NAME)
