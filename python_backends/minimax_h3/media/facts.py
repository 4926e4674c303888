"""What a client's file is: identified, measured within bounds and checked against the limits."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from minimax_h3.core.conditions import AUDIO, IMAGE, VIDEO
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.core.limits import MEDIA_FORMATS, PICTURE_FORMATS, SOUND_FORMATS, check
from minimax_h3.media.containers import check_structure
from minimax_h3.media.kinds import FileFormat, identify
from minimax_h3.media.pictures import read_header
from minimax_h3.media.sounds import SoundMeasure, measure_sound
from minimax_h3.media.videos import VideoMeasure, measure_video


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """A legal file.

    Attributes:
        kind: IMAGE, VIDEO or AUDIO of `core.conditions`.
        format: a name of `core.limits.MEDIA_FORMATS`.
        digest: SHA-256 of the bytes, hexadecimal.
        size_bytes: of the file.
        width, height: upright, in stored pixels; 0 for a sound.
        video, sound: measures of the streams, or None.
    """

    kind: str
    format: str
    digest: str
    size_bytes: int
    width: int = 0
    height: int = 0
    video: VideoMeasure | None = None
    sound: SoundMeasure | None = None

    @property
    def seconds(self) -> float:
        """Length of the picture of a video, or of a sound; 0 for a picture."""
        if self.video is not None:
            return float(self.video.timeline.span)
        return 0.0 if self.sound is None else float(self.sound.span)

    @property
    def has_sound(self) -> bool:
        """Whether there is a sound or a soundtrack."""
        return self.sound is not None


def inspect(encoded: bytes, name: str, formats: Sequence[str] = MEDIA_FORMATS) -> SourceFacts:
    """Identify a file, measure it and check it against every limit of a single file.

    No picture and only the first frame of a video is decoded; sound is decoded up to the longest
    legal length, because no header tells how many samples a compressed one has.

    Args:
        encoded: the whole file.
        name: the file as a client counts it, such as `references[1]`.
        formats: what may stand there, some of `MEDIA_FORMATS`.

    Raises:
        InvalidRequestError: names the file, what was found and what is legal.
    """
    form = identify(encoded, name, formats)
    if form.name in PICTURE_FORMATS:
        check("picture_bytes", len(encoded), name)
        header = read_header(encoded, form.name, name)
        return _facts(IMAGE, form, encoded, width=header.width, height=header.height)
    check("sound_bytes" if form.name in SOUND_FORMATS else "video_bytes", len(encoded), name)
    check_structure(encoded, form, name)
    video = None if form.name in SOUND_FORMATS else measure_video(encoded, form, name)
    if video is None:
        return _sound_facts(encoded, form, name)
    sound = measure_sound(encoded, form, name)
    return _facts(
        VIDEO, form, encoded, width=video.width, height=video.height, video=video, sound=sound
    )


def _sound_facts(encoded: bytes, form: FileFormat, name: str) -> SourceFacts:
    """Facts of a sound file, or of an MP4 or MOV file that holds nothing but sound."""
    check("sound_bytes", len(encoded), name)
    sound = measure_sound(encoded, form, name)
    if sound is None:
        raise InvalidRequestError(
            f"{name}: {form.name} without a video or sound stream is not legal; legal: either"
        )
    check("sound_seconds", float(sound.span), name)
    return _facts(AUDIO, form, encoded, sound=sound)


def _facts(kind: str, form: FileFormat, encoded: bytes, **measures: object) -> SourceFacts:
    digest = hashlib.sha256(encoded).hexdigest()
    return SourceFacts(kind, form.name, digest, len(encoded), **measures)  # type: ignore[arg-type]
