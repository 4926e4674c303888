import stat
from pathlib import Path

import pytest

from h3_client.output_files import check_writable, clip_paths, write_atomically


def test_one_clip_keeps_the_name_and_several_are_numbered() -> None:
    assert clip_paths(Path("a/out.mp4"), 1) == [Path("a/out.mp4")]
    assert clip_paths(Path("a/out.mp4"), 2) == [Path("a/out-0.mp4"), Path("a/out-1.mp4")]
    assert clip_paths(Path("clip"), 2) == [Path("clip-0"), Path("clip-1")]


def test_places_that_cannot_take_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="is a folder"):
        check_writable([tmp_path])
    with pytest.raises(NotADirectoryError, match=r"no folder .*absent"):
        check_writable([tmp_path / "absent" / "out.mp4"])
    with pytest.raises(FileExistsError, match="not a plain file"):
        check_writable([Path("/dev/null")])
    check_writable([tmp_path / "out.mp4"])
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    path.write_bytes(b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.mp4"]
    assert stat.S_IMODE(path.stat().st_mode) & 0o400


def test_a_failed_write_leaves_the_old_file_and_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.mp4"
    path.write_bytes(b"old")

    def full_disk(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.mp4"]
