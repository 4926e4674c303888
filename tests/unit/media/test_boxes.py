import pytest

from minimax_h3.media.boxes import walk_boxes


def box(kind: bytes, payload: bytes = b"") -> bytes:
    return (8 + len(payload)).to_bytes(4, "big") + kind + payload


def wide_box(kind: bytes, payload: bytes = b"") -> bytes:
    return b"\0\0\0\1" + kind + (16 + len(payload)).to_bytes(8, "big") + payload


@pytest.mark.parametrize(
    ("data", "kinds", "moov_first"),
    [
        (box(b"ftyp", b"isom") + box(b"moov", b"x" * 99) + box(b"mdat"), "ftyp moov mdat", True),
        (box(b"ftyp") + box(b"mdat", b"moov") + box(b"moov"), "ftyp mdat moov", False),
        (box(b"moov") + wide_box(b"mdat", b"y" * 40) + box(b"free"), "moov mdat free", True),
        (box(b"moov") + b"\0\0\0\0mdat" + b"z" * 50, "moov mdat", True),
        (box(b"moov"), "moov", False),
    ],
)
def test_whole_files(data, kinds, moov_first, tmp_path):
    path = tmp_path / "boxes.mp4"
    path.write_bytes(data)
    for source in (data, path):
        walk = walk_boxes(source)
        assert (" ".join(walk.kinds), walk.moov_first, walk.problem) == (kinds, moov_first, "")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "empty file"),
        (b"abc", "no box at byte 0"),
        (box(b"ftyp") + b"\0\0\0\3free", "no box at byte 8"),
        (box(b"ftyp") + b"\0\0\0\1mdat" + (15).to_bytes(8, "big"), "no box at byte 8"),
        (box(b"moov", b"x" * 20)[:-5], "moov ends 5 bytes behind the file"),
        (wide_box(b"mdat")[:-8] + (2**63).to_bytes(8, "big"), "behind the file"),
        (box(b"free") * 2000, "more than 1024 boxes"),
    ],
)
def test_damage_ends_the_walk_with_a_reason(data, problem):
    assert problem in walk_boxes(data).problem
