"""`file:NAME` elements: bytes from below the operator's root and from nowhere else."""

import os
from pathlib import Path

import pytest

from minimax_h3.core.errors import InvalidRequestError, NotAvailableError
from minimax_h3.core.limits import LIMITS
from minimax_h3.stages.media_files import MediaFiles


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "media"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.png").write_bytes(b"picture")
    (folder / "inner" / "b.wav").write_bytes(b"sound")
    (tmp_path / "secret").write_bytes(b"secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "inside").symlink_to("a.png")
    (folder / "up").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    return folder


def test_bytes_are_handed_on_whatever_the_root() -> None:
    assert MediaFiles("").read(b"\x89PNG", "keyframes[0]") == b"\x89PNG"


def test_names_below_the_root(root: Path) -> None:
    files = MediaFiles(str(root))
    assert files.read(b"file:a.png", "keyframes[0]") == b"picture"
    assert files.read(b"file:inner/b.wav", "references[0]") == b"sound"


def test_without_a_root_no_name_is_opened(root: Path) -> None:
    with pytest.raises(
        NotAvailableError, match=r"^references\[2\]: .file:.*a.png. is not legal.* not served"
    ):
        MediaFiles("").read(f"file:{root}/a.png".encode(), "references[2]")


@pytest.mark.parametrize(
    "name",
    [
        *("../secret", "inner/../../secret", "inner/../a.png", "/etc/passwd", "./a.png", "."),
        *("", "inner", "inner/", "absent.png", "link", "inside", "up/secret", "pipe", "a.png/x"),
        *("a\0.png", "x" * 5000, "//a.png", "/dev/zero", "inner//b.wav"),
    ],
)
def test_nothing_else_is_opened(root: Path, name: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^keyframes\[0\]: ") as refusal:
        MediaFiles(str(root)).read(b"file:" + name.encode(), "keyframes[0]")
    assert "secret" not in str(refusal.value).replace(name, "")
    assert len(str(refusal.value)) < 600


def test_a_name_that_is_no_text(root: Path) -> None:
    with pytest.raises(InvalidRequestError, match="UTF-8"):
        MediaFiles(str(root)).read(b"file:\xff\xfe", "keyframes[0]")


def test_a_file_above_every_limit_is_not_read(root: Path) -> None:
    largest = int(LIMITS["video_bytes"].high)
    with (root / "large.mp4").open("wb") as file:
        file.truncate(largest + 1)
    with pytest.raises(InvalidRequestError, match="up to"):
        MediaFiles(str(root)).read(b"file:large.mp4", "references[0]")
