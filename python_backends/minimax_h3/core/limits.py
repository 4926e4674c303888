"""The limits of media files: one table for preprocess, client, documents and error texts.

A limit is checked by name, `check("video_seconds", 1.2, "references[1]")`, and the refusal says
what was measured and what is legal. `docs/requests.md` prints the table; nothing repeats a number
of it. Source of each choice: docs/decisions.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from minimax_h3.core.errors import InvalidRequestError

MIB = 1024**2

PICTURE_FORMATS = ("JPEG", "PNG", "WEBP")
VIDEO_FORMATS = ("MP4", "MOV")
SOUND_FORMATS = ("WAV", "MP3", "AAC")
MEDIA_FORMATS = (*PICTURE_FORMATS, *VIDEO_FORMATS, *SOUND_FORMATS)

# Codecs by the names FFmpeg gives them. WAV is judged by its prefix: pcm_s16le, pcm_f32le, ...
VIDEO_CODECS = ("h264", "hevc")
SOUNDTRACK_CODECS = ("aac", "mp3")
SOUND_CODECS = ("mp3", "aac")
PCM_PREFIX = "pcm_"


@dataclass(frozen=True, slots=True)
class Limit:
    """One legal range, both ends included.

    Attributes:
        low, high: bounds in `unit`.
        unit: what is counted.
        meaning: the sentence of the documents.
    """

    low: float
    high: float
    unit: str
    meaning: str

    @property
    def legal(self) -> str:
        """The range in words: `2..15 s of video`."""
        if self.unit == "bytes" and not self.high % MIB:
            return f"{self.low:g}..{self.high:,.0f} bytes ({self.high / MIB:g} MiB)"
        return f"{_number(self.low)}..{_number(self.high)} {self.unit}"

    def allows(self, value: float) -> bool:
        """Whether a measured value is legal; NaN never is."""
        return self.low <= value <= self.high


LIMITS: Mapping[str, Limit] = MappingProxyType(
    {
        "keyframes": Limit(1, 2, "keyframes", "pictures in KEYFRAMES"),
        "images": Limit(0, 9, "reference images", "pictures in REFERENCES"),
        "videos": Limit(0, 3, "reference videos", "videos in REFERENCES"),
        "audios": Limit(
            0, 3, "reference audios", "sounds in REFERENCES; a video's own soundtrack is none"
        ),
        "references": Limit(1, 12, "references", "files in REFERENCES, of any kind"),
        "request_bytes": Limit(1, 256 * MIB, "bytes", "all files of a request together"),
        "picture_bytes": Limit(1, 30 * MIB, "bytes", "one picture, encoded"),
        "picture_side": Limit(16, 8192, "pixels a side", "sides of a picture, upright"),
        "picture_pixels": Limit(256, 50_000_000, "pixels", "pixels of a picture"),
        "picture_ratio": Limit(0.25, 4, "width / height", "shape of a picture, upright"),
        "video_bytes": Limit(1, 50 * MIB, "bytes", "one video, encoded"),
        "video_side": Limit(16, 4096, "pixels a side", "sides of a video, upright"),
        "video_pixels": Limit(256, 4096 * 2304, "pixels", "pixels of a video frame"),
        "video_ratio": Limit(0.25, 4, "width / height", "shape of a video, upright"),
        "video_fps": Limit(5, 120, "frames a second", "average rate of a video"),
        "video_seconds": Limit(2, 15, "s of video", "one video; 2 s after `start_time_seconds`"),
        "all_video_seconds": Limit(
            0, 15, "s of video", "all reference videos together, after `start_time_seconds`"
        ),
        "sound_bytes": Limit(1, 15 * MIB, "bytes", "one sound file, encoded"),
        "sound_seconds": Limit(2, 15, "s of sound", "one sound file"),
        "all_sound_seconds": Limit(0, 15, "s of sound", "all reference sounds together"),
        "sound_rate": Limit(8_000, 192_000, "Hz", "sample rate of a sound or a soundtrack"),
        "sound_channels": Limit(
            1, 8, "channels", "channels of a sound or a soundtrack; mixed to stereo, mono doubled"
        ),
    }
)

# A container rounds its duration to its own clock and a codec pads its last block: a file that was
# cut to 15 s may say 15.04 s. What is beyond the limit is cut off like any other surplus.
SECONDS_SLACK = 0.1


def check(limit: str, value: float, subject: str) -> None:
    """Refuse a measured value outside its limit.

    Args:
        limit: name in `LIMITS`.
        value: what was measured, in the limit's unit.
        subject: the file as a client counts it, such as `references[1]`.

    Raises:
        InvalidRequestError: names the subject, the value and the legal range.
    """
    rule = LIMITS[limit]
    slack = SECONDS_SLACK if rule.unit.startswith("s of ") else 0.0
    if not rule.low - slack <= value <= rule.high + slack:
        raise InvalidRequestError(
            f"{subject}: {_number(value)} {rule.unit} ({rule.meaning}) is not legal; "
            f"legal: {rule.legal}"
        )


def _number(value: float) -> str:
    """Whole numbers with separators, others with what a reader needs of them."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"


def as_markdown() -> str:
    """The table as the documents print it."""
    lines = ["| limit | legal | of what |", "|---|---|---|"]
    lines += [f"| `{name}` | {limit.legal} | {limit.meaning} |" for name, limit in LIMITS.items()]
    return "\n".join(lines) + "\n"
