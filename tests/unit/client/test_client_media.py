"""Files of a request in the client: what is read, what is refused before a byte is sent."""

from pathlib import Path

import pytest

from h3_client.errors import H3ClientError
from h3_client.fields import encode_request
from minimax_h3.core.limits import LIMITS


def elements(**fields: object) -> dict[str, list[object]]:
    return {tensor.name: tensor.values.tolist() for tensor in encode_request(fields)}


def test_bytes_paths_and_names_at_the_server(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    sent = elements(
        keyframes=tmp_path / "a.png",
        references=[b"RIFF", "file:clips/b.mp4"],
        frame_indices=[0, -1],
        start_time_seconds=0.5,
        audio_mode="lock_source",
    )
    assert sent == {
        "KEYFRAMES": [b"\x89PNG"],
        "REFERENCES": [b"RIFF", b"file:clips/b.mp4"],
        "FRAME_INDICES": [0, -1],
        "START_TIME_SECONDS": [0.5],
        "AUDIO_MODE": [b"lock_source"],
    }


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("keyframes", "a.png", r"keyframes\[0\]: 'a.png' is not legal; legal: bytes, a Path"),
        ("references", "https://x/y.png", r"references\[0\]: 'https://x/y.png' is not legal"),
        ("references", [b"", 7], r"references\[1\]: 7 is not legal"),
        ("references", [], r"references: 0 references"),
        ("references", [b"x"] * 13, r"references: 13 references .*legal: 1..12"),
        ("keyframes", [b"x"] * 3, r"keyframes: 3 keyframes .*legal: 1..2"),
        (
            "keyframes",
            Path("/nowhere/a.png"),
            r"keyframes\[0\]: '/nowhere/a.png' cannot be read \(No such file or directory\); legal",
        ),
        ("keyframes", Path("/etc"), r"keyframes\[0\]: '/etc' is a folder; legal: 1\.\.31,457,280"),
        ("references", Path("/dev/zero"), r"references\[0\]: '/dev/zero' is no regular file"),
        ("references", Path("/x" * 3000), r"references\[0\]: '(/x){49}/?\.\.\.' cannot be read"),
        ("frame_indices", [0, "last"], "frame_indices: 'last' is not legal"),
        ("frame_indices", [], r"frame_indices: \[\] is not legal"),
        ("start_time_seconds", ["1"], "start_time_seconds: '1' is not legal"),
    ],
)
def test_refused_by_name(name: str, value: object, message: str) -> None:
    with pytest.raises(H3ClientError, match=message) as refusal:
        encode_request({name: value})
    assert refusal.value.status == "INVALID_ARGUMENT"


def test_a_file_above_every_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.mp4"
    with path.open("wb") as file:
        file.truncate(int(LIMITS["video_bytes"].high) + 1)
    with pytest.raises(
        H3ClientError, match=r"references\[0\]: .*large.mp4. has 52,428,801 bytes; .*50 MiB"
    ):
        encode_request({"references": path})


@pytest.mark.parametrize(("name", "limit"), [("keyframes", "30 MiB"), ("references", "50 MiB")])
def test_an_empty_file_is_called_empty(tmp_path: Path, name: str, limit: str) -> None:
    path = tmp_path / "empty.png"
    path.touch()
    with pytest.raises(H3ClientError, match=rf"{name}\[0\]: .*empty.png. is empty; .*{limit}"):
        encode_request({name: path})


def test_a_name_that_is_no_text_is_left_to_the_server() -> None:
    assert elements(keyframes="file:\udcff.png") == {"KEYFRAMES": [b"file:\xed\xb3\xbf.png"]}
