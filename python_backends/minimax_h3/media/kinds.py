"""What kind of file some bytes are, judged by the bytes alone; names count for nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.core.limits import MEDIA_FORMATS

JPEG, PNG, WEBP, MP4, MOV, WAV, MP3, AAC = "JPEG", "PNG", "WEBP", "MP4", "MOV", "WAV", "MP3", "AAC"

_SIGNATURES = (
    (b"\xff\xd8\xff", JPEG),
    (b"\x89PNG\r\n\x1a\n", PNG),
    (b"GIF8", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\0\0\0\x0cJXL ", "JPEG XL"),
    (b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (b"8BPS", "Photoshop"),
    (b"RF64", "RF64 wave"),
    (b"FORM", "AIFF"),
    (b"fLaC", "FLAC"),
    (b"OggS", "Ogg"),
    (b"\x1aE\xdf\xa3", "Matroska or WebM"),
    (b"FLV", "Flash video"),
    (b"\0\0\1\xba", "MPEG program stream"),
    (b"\x30\x26\xb2\x75", "Windows Media"),
    (b"%PDF", "PDF"),
    (b"PK\3\4", "ZIP"),
    (b"\x1f\x8b", "gzip"),
    (b"#EXTM3U", "HLS playlist"),
    (b"ffconcat", "FFmpeg playlist"),
    (b"<", "markup text"),
)
_RIFF_FORMATS = {b"WEBP": WEBP, b"WAVE": WAV, b"AVI ": "AVI"}
# Brands of the ISO container that hold no video of ours; any other brand is read as MP4.
_BRANDS = {
    **dict.fromkeys((b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1"), "HEIC"),
    **dict.fromkeys((b"avif", b"avis"), "AVIF"),
    b"crx ": "Canon raw picture",
    b"qt  ": MOV,
}
_QUICKTIME_BOXES = (b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")  # files before `ftyp`
_ID3_HEADER_BYTES = 10
_TRANSPORT_PACKET_BYTES = 188


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A file format that is accepted.

    Attributes:
        name: one of `core.limits.MEDIA_FORMATS`.
        reader: name of FFmpeg's demuxer, which is never left to FFmpeg's own guess (playlists are
            formats too); empty for pictures.
    """

    name: str
    reader: str


_ACCEPTED = {
    JPEG: FileFormat(JPEG, ""),
    PNG: FileFormat(PNG, ""),
    WEBP: FileFormat(WEBP, ""),
    MP4: FileFormat(MP4, "mp4"),
    MOV: FileFormat(MOV, "mov"),
    WAV: FileFormat(WAV, "wav"),
    MP3: FileFormat(MP3, "mp3"),
    AAC: FileFormat(AAC, "aac"),
}


def identify(encoded: bytes, name: str, formats: Sequence[str] = MEDIA_FORMATS) -> FileFormat:
    """Recognise an encoded file by its content.

    Args:
        encoded: the whole file.
        name: the file as a client counts it, such as `references[1]`.
        formats: what may stand there, some of `MEDIA_FORMATS`.

    Raises:
        InvalidRequestError: any format but those of `formats`; names the one that was found.
    """
    found = _format_of(encoded)
    if found in formats:
        return _ACCEPTED[found]
    raise InvalidRequestError(
        f"{name}: {found} ({len(encoded)} bytes) is not legal; legal: {', '.join(formats)}"
    )


def _format_of(encoded: bytes) -> str:
    if not encoded:
        return "empty file"
    if encoded.startswith(b"RIFF"):
        return _RIFF_FORMATS.get(encoded[8:12], "unknown RIFF file")
    for signature, found in _SIGNATURES:
        if encoded.startswith(signature):
            return found
    return _iso_format(encoded) or _stream_format(encoded) or "unknown format"


def _iso_format(encoded: bytes) -> str:
    box = encoded[4:8]
    if box == b"ftyp":
        brand = encoded[8:12]
        return "3GP" if brand.startswith((b"3gp", b"3g2")) else _BRANDS.get(brand, MP4)
    return MOV if box in _QUICKTIME_BOXES else ""


def _stream_format(encoded: bytes) -> str:
    """Formats without a signature: MPEG sound starts with 11 or 12 set bits."""
    start = behind_id3(encoded)
    head = encoded[start : start + 2]
    if len(head) == 2 and head[0] == 0xFF:
        layer = head[1] >> 1 & 3
        if head[1] & 0xF0 == 0xF0 and layer == 0:
            return AAC
        if head[1] & 0xE0 == 0xE0:
            return {1: MP3, 2: "MPEG layer 2 sound", 3: "MPEG layer 1 sound"}.get(layer, "")
    if start:
        return "ID3 tag without MP3 or AAC sound behind it"
    if (
        encoded[:1] == b"G"
        and encoded[_TRANSPORT_PACKET_BYTES : _TRANSPORT_PACKET_BYTES + 1] == b"G"
    ):
        return "MPEG transport stream"
    return ""


def behind_id3(encoded: bytes) -> int:
    """Where the sound of an MP3 or AAC file starts, in bytes: behind an ID3 tag, if it has one."""
    if not encoded.startswith(b"ID3") or len(encoded) < _ID3_HEADER_BYTES:
        return 0
    size = 0
    for byte in encoded[6:10]:  # seven bits a byte
        size = size << 7 | byte & 0x7F
    return _ID3_HEADER_BYTES + size
