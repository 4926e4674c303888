"""`file:NAME` elements: bytes from below the operator's root and from nowhere else."""

import os
from pathlib import Path

import pytest
from fakes.refusals import check_refusal

from minimax_h3.core.errors import ConfigError, InvalidRequestError, NotAvailableError
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
        *("a\0.png", "a\n.png", "x" * 5000, "//a.png", "/dev/zero", "inner//b.wav"),
    ],
)
def test_nothing_else_is_opened(root: Path, name: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^keyframes\[0\]: ") as refusal:
        MediaFiles(str(root)).read(b"file:" + name.encode(), "keyframes[0]")
    assert "secret" not in str(refusal.value).replace(name, "")
    assert len(str(refusal.value)) < 600


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("absent.png", "does not exist below the media root"),
        ("inner/absent.png", "does not exist below the media root"),
        ("absent/a.png", "does not exist below the media root"),
        ("x" * 5000, "does not exist below the media root"),
        ("inner", "is a folder"),
        ("pipe", "is no regular file"),
        *(
            (name, "goes through a link or a file that is no folder")
            for name in ("link", "a.png/x")
        ),
    ],
)
def test_the_refusal_says_what_is_wrong_with_a_name(root: Path, name: str, fault: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        MediaFiles(str(root)).read(f"file:{name}".encode(), "references[0]")
    check_refusal(refusal.value, r"references\[0\]", f"{fault}; legal: a regular file below")
    assert str(LIMITS["video_bytes"].high) not in str(refusal.value).replace(",", "")


@pytest.mark.parametrize("target", ["absent", "secret", "folder", "/dev/zero"])
def test_a_link_tells_nothing_of_where_it_leads(root: Path, target: str) -> None:
    (root.parent / "folder").mkdir()
    (root / "there").symlink_to(root.parent / target)
    texts = set()
    for name in ("there", "there/x", "there/secret"):
        with pytest.raises(InvalidRequestError) as refusal:
            MediaFiles(str(root)).read(f"file:{name}".encode(), "references[0]")
        texts.add(str(refusal.value).replace(f"file:{name}", ""))
    assert len(texts) == 1
    assert "goes through a link" in texts.pop()


def test_a_name_that_is_no_text(root: Path) -> None:
    with pytest.raises(InvalidRequestError, match="UTF-8"):
        MediaFiles(str(root)).read(b"file:\xff\xfe", "keyframes[0]")


def test_a_file_above_every_limit_is_not_read(root: Path) -> None:
    largest = int(LIMITS["video_bytes"].high)
    with (root / "large.mp4").open("wb") as file:
        file.truncate(largest + 1)
    with pytest.raises(InvalidRequestError, match="has more than 52,428,800 bytes"):
        MediaFiles(str(root)).read(b"file:large.mp4", "references[0]")


def test_a_root_that_is_not_there_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"media_root: '.*/absent' .* legal: an existing folder"):
        MediaFiles(str(tmp_path / "absent"))
