"""Rules that need to know what the files of a request are: kinds, counts, seconds, canvas.

`core.request` judges what a request says, the media layer each file for itself; here both meet.
Source: pipeline sheet sections 1.2, 1.6 and 1.7.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from minimax_h3.core.canvas import RELEASED, CanvasRule, canvas_from_size
from minimax_h3.core.conditions import AUDIO, DRIVING_AUDIO, IMAGE, VIDEO
from minimax_h3.core.constants import TASK_REF2VA
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.core.fields import AUDIO_LOCK_SOURCE
from minimax_h3.core.limits import LIMITS, check
from minimax_h3.core.refusals import refuse
from minimax_h3.core.request import GenerationRequest

_COUNTS = ((IMAGE, "images"), (VIDEO, "videos"), (AUDIO, "audios"))


class MediaFacts(Protocol):
    """What a look at a file tells before it is decoded.

    Attributes:
        kind: image, video or audio.
        width, height: upright pixels; 0 for sound alone.
        seconds: length; 0 for a picture.
    """

    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def width(self) -> int: ...  # noqa: D102
    @property
    def height(self) -> int: ...  # noqa: D102
    @property
    def seconds(self) -> float: ...  # noqa: D102


def check_request_bytes(elements: Iterable[bytes]) -> None:
    """Refuse a request whose files are too large together, before any is opened.

    Raises:
        InvalidRequestError: names the sum and the legal range.
    """
    total = sum(map(len, elements))
    if total:
        check("request_bytes", total, "keyframes, references")


def with_canvas(
    request: GenerationRequest, keyframes: Sequence[MediaFacts], rule: CanvasRule = RELEASED
) -> GenerationRequest:
    """The request with the canvas of its first keyframe, unless width and height were given.

    A lone last frame counts as the first one.
    """
    if request.width:
        return request
    width, height = canvas_from_size(keyframes[0].width, keyframes[0].height, rule)
    return replace(request, width=width, height=height)


def check_media(request: GenerationRequest, references: Sequence[MediaFacts]) -> None:
    """Refuse references that do not go with each other, with the task or with the fields.

    Raises:
        InvalidRequestError: names the file or field, the value and what is legal.
    """
    kinds = [facts.kind for facts in references]
    for kind, limit in _COUNTS:
        check(limit, kinds.count(kind), "references")
    if request.locks_source and kinds.count(AUDIO) != 1:
        raise refuse(
            "audio_mode",
            AUDIO_LOCK_SOURCE,
            f"native with {kinds.count(AUDIO)} sounds in references; lock_source keeps exactly one",
        )
    if request.task == TASK_REF2VA and not {IMAGE, VIDEO} & set(kinds):
        raise InvalidRequestError(
            f"references: sound alone, {len(kinds)} of it, is not legal for task {request.task}; "
            "legal: at least one image or video with it"
        )
    starts = start_times(request, references)
    _check_seconds(references, starts)


def start_times(request: GenerationRequest, references: Sequence[MediaFacts]) -> list[float]:
    """Seconds to skip at the start of each reference; 0 for anything but a video.

    Raises:
        InvalidRequestError: not one start per reference video.
    """
    videos = [index for index, facts in enumerate(references) if facts.kind == VIDEO]
    starts = [0.0] * len(references)
    if not request.start_times:
        return starts
    if len(request.start_times) != len(videos):
        raise refuse(
            "start_time_seconds",
            list(request.start_times),
            f"one value per reference video, of which there are {len(videos)}",
        )
    for index, start_s in zip(videos, request.start_times, strict=True):
        starts[index] = start_s
    return starts


def condition_kinds(request: GenerationRequest, references: Sequence[MediaFacts]) -> list[str]:
    """Condition kind of each reference: its own, or driving audio for the sound that is locked."""
    return [
        DRIVING_AUDIO if request.locks_source and facts.kind == AUDIO else facts.kind
        for facts in references
    ]


def _check_seconds(references: Sequence[MediaFacts], starts: Sequence[float]) -> None:
    """Sums over all videos and over all sounds, and what a start leaves of its video."""
    used_s = {VIDEO: 0.0, AUDIO: 0.0}
    shortest_s = LIMITS["video_seconds"].low
    for index, (facts, start_s) in enumerate(zip(references, starts, strict=True)):
        if start_s and not facts.seconds - start_s >= shortest_s:
            raise refuse(
                "start_time_seconds",
                start_s,
                f"0..{max(0.0, facts.seconds - shortest_s):.4g} s for references[{index}] of "
                f"{facts.seconds:.4g} s; {shortest_s:g} s must be left",
            )
        if facts.kind in used_s:
            used_s[facts.kind] += facts.seconds - start_s
    check("all_video_seconds", used_s[VIDEO], "references")
    check("all_sound_seconds", used_s[AUDIO], "references")
