"""The files of a request: read, measured, checked against each other, planned as conditions."""

from collections.abc import Sequence
from dataclasses import dataclass

from minimax_h3.core.canvas import RELEASED, CanvasRule
from minimax_h3.core.conditions import DRIVING_AUDIO, KEYFRAME, Condition
from minimax_h3.core.limits import MEDIA_FORMATS, PICTURE_FORMATS
from minimax_h3.core.media_rules import (
    check_media,
    check_request_bytes,
    condition_kinds,
    start_times,
)
from minimax_h3.core.request import GenerationRequest
from minimax_h3.media.facts import SourceFacts, inspect
from minimax_h3.media.prepare import plan_keyframe, plan_reference
from minimax_h3.stages.media_files import MediaFiles


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a request: its bytes and what they hold."""

    encoded: bytes
    facts: SourceFacts


@dataclass(frozen=True, slots=True)
class RequestMedia:
    """All files of a request, legal each for itself and together."""

    keyframes: tuple[SourceFile, ...]
    references: tuple[SourceFile, ...]

    def file_of(self, condition: Condition) -> bytes:
        """The encoded bytes that a condition was planned from."""
        group = self.keyframes if condition.kind == KEYFRAME else self.references
        return group[condition.source].encoded


def read_media(request: GenerationRequest, files: MediaFiles) -> RequestMedia:
    """Read and judge every file of a request; no picture and only one frame of a video is decoded.

    Raises:
        InvalidRequestError: names the file, what was found and what is legal.
        NotAvailableError: a name of a file where the operator allows none.
    """
    keyframes = _read("keyframes", request.keyframes, files)
    references = _read("references", request.references, files)
    check_request_bytes([*keyframes, *references])
    media = RequestMedia(_inspected("keyframes", keyframes), _inspected("references", references))
    check_media(request, _facts(media.references))
    return media


def plan_conditions(
    request: GenerationRequest, media: RequestMedia, canvas: CanvasRule = RELEASED
) -> tuple[Condition, ...]:
    """The conditions of a request whose canvas is settled: keyframes, then references in order.

    Args:
        request: with width and height.
        media: its files.
        canvas: the checkpoint's rule, for references.

    Raises:
        InvalidRequestError: a start leaves too little of a file.
    """
    keyframes = [
        plan_keyframe(file.facts, index, request.width, request.height, frame_index)
        for index, (file, frame_index) in enumerate(
            zip(media.keyframes, request.frame_indices, strict=True)
        )
    ]
    facts = _facts(media.references)
    kinds, starts = condition_kinds(request, facts), start_times(request, facts)
    references = [
        plan_reference(
            one,
            index,
            request.num_frames,
            start_s,
            driving=kind == DRIVING_AUDIO,
            canvas=canvas,
        )
        for index, (one, kind, start_s) in enumerate(zip(facts, kinds, starts, strict=True))
    ]
    return (*keyframes, *references)


def _read(field: str, elements: Sequence[bytes], files: MediaFiles) -> list[bytes]:
    encoded: list[bytes] = []
    for index, element in enumerate(elements):
        encoded.append(files.read(element, f"{field}[{index}]"))
        check_request_bytes(encoded)  # at once: names are short, the files behind them are not
    return encoded


def _inspected(field: str, encoded: Sequence[bytes]) -> tuple[SourceFile, ...]:
    formats = PICTURE_FORMATS if field == "keyframes" else MEDIA_FORMATS
    return tuple(
        SourceFile(one, inspect(one, f"{field}[{index}]", formats))
        for index, one in enumerate(encoded)
    )


def _facts(files: Sequence[SourceFile]) -> list[SourceFacts]:
    return [file.facts for file in files]
