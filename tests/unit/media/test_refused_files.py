"""Refused files read alike: the file as a client counts it, what was found, what is legal."""

import struct

import pytest
from fakes.refusals import check_refusal
from PIL import Image
from source_samples import Clip, encoded, picture, video, wav

from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.media.facts import inspect
from minimax_h3.media.kinds import identify
from minimax_h3.media.pictures import read_picture
from minimax_h3.media.sounds import read_sound

NAME = "references[1]"
CLIP = video(Clip(frames=50))
PHOTO = encoded(picture(200, 150), "JPEG")


def falsified(data: bytes, at: int, put: bytes) -> bytes:
    return data[:at] + put + data[at + len(put) :]


FILES = [
    (b"", "empty file"),
    (b"\x89PNG\r\n\x1a\n", "damaged or truncated PNG"),
    (
        falsified(encoded(picture()), 16, struct.pack(">I", 65)),
        r"PNG \(cannot identify image file\)",
    ),
    (encoded(picture())[:40], "damaged or truncated PNG"),
    (b"\xff\xd8\xff" + bytes(50), r"JPEG \(cannot identify image file\)"),
    (b"RIFF\x20\0\0\0WEBPVP8 " + bytes(20), "damaged or truncated WEBP"),
    (PHOTO[: len(PHOTO) // 3], "damaged or truncated JPEG"),
    (encoded(Image.new("RGB", (15, 15))), "15 pixels a side"),
    (encoded(Image.new("RGB", (200, 20))), "10 width / height"),
    (falsified(CLIP, CLIP.index(b"moov"), b"mooX"), "damaged or truncated MP4"),
    (CLIP[: len(CLIP) // 2], "ends .* bytes behind the file"),
    (falsified(CLIP, CLIP.rindex(b"avc1"), b"av01"), "av1|damaged"),
    (falsified(CLIP, CLIP.index(b"mdat") + 4, b"\xff" * 2000), "damaged or truncated MP4"),
    (b"\0\0\0\x18ftypisom" + bytes(12), "damaged or truncated MP4|without a video"),
    (video(Clip(frames=20)), "20 frames at 24 a second: 0.8333 s of video"),
    (video(Clip(frames=50, codec="mpeg4")), "video codec mpeg4"),
    (wav(1.0), "1 s of sound"),
    (wav(3.0)[:60], "ends .* bytes behind the file|damaged|without samples"),
    (b"\xff\xfb\x90\0" + bytes(60), "damaged|without samples"),
    (b"OggS" + bytes(60), "Ogg"),
]


def read(data: bytes) -> None:
    """Look at a file, and then at what only decoding shows."""
    inspect(data, NAME)
    form = identify(data, NAME)
    if form.reader:
        read_sound(data, form, NAME, None, 5.0)
    else:
        read_picture(data, form.name, NAME)


@pytest.mark.parametrize(("data", "found"), FILES, ids=range(len(FILES)))
def test_a_refused_file_reads_like_any_other_refusal(data: bytes, found: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        read(data)
    check_refusal(refusal.value, r"references\[1\]", found)
