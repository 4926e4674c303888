import pytest
from source_samples import Clip, encoded, picture, sound_file, tones, video, wav

from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.core.limits import MEDIA_FORMATS
from minimax_h3.media.kinds import identify


def test_every_legal_format_is_recognised_by_its_bytes():
    image, wave = picture(), tones(0.2)
    files = {
        "JPEG": encoded(image, "JPEG"),
        "PNG": encoded(image, "PNG"),
        "WEBP": encoded(image, "WEBP"),
        "MP4": video(Clip(frames=3)),
        "MOV": video(Clip(frames=3, form="mov")),
        "WAV": wav(0.2),
        "MP3": sound_file(wave, "mp3", "libmp3lame"),
        "AAC": sound_file(wave, "adts", "aac"),
    }
    assert set(files) == set(MEDIA_FORMATS)
    assert {name: identify(file, "x").name for name, file in files.items()} == {
        name: name for name in files
    }


def test_an_id3_tag_is_looked_behind():
    tag = b"ID3\x04\0\0\0\0\1\0" + bytes(128)
    assert identify(tag + b"\xff\xfb\x90\0", "x").name == "MP3"
    assert identify(tag + b"\xff\xf1\x50\x80", "x").name == "AAC"


@pytest.mark.parametrize(
    ("start", "named"),
    [
        (b"", "empty file"),
        (b"GIF89a", "GIF"),
        (b"BM1234", "BMP"),
        (b"II*\0abcd", "TIFF"),
        (b"\0\0\0\x18ftypheic", "HEIC"),
        (b"\0\0\0\x18ftypavif", "AVIF"),
        (b"\0\0\0\x18ftyp3gp4", "3GP"),
        (b"\x1aE\xdf\xa3", "Matroska"),
        (b"RIFF\0\0\0\0AVI LIST", "AVI"),
        (b"RIFF\0\0\0\0CDXA", "unknown RIFF"),
        (b"fLaC", "FLAC"),
        (b"OggS", "Ogg"),
        (b"#EXTM3U\nhttp://x/y", "HLS playlist"),
        (b"ffconcat version 1.0\nfile /etc/passwd", "FFmpeg playlist"),
        (b"<svg>", "markup text"),
        (b"PK\3\4", "ZIP"),
        (b"ID3\x04\0\0\0\0\0\0", "ID3 tag without"),
        (b"\xff\xfd\x90\0", "MPEG layer 2"),
        (b"G" + bytes(187) + b"G", "MPEG transport stream"),
        (b"https://example.com/a.png", "unknown format"),
        (b"/etc/passwd", "unknown format"),
    ],
)
def test_everything_else_is_refused_by_name(start, named):
    with pytest.raises(InvalidRequestError, match=rf"^references\[1\]: {named}.*legal: JPEG, PNG"):
        identify(start, "references[1]")
