"""The packed sequence of one request: which rows come in which order, and what each row is.

A layout is a list of segments, each made by one builder, put together by `assemble`. A task is
nothing but its list: a new kind of condition is one more builder.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Literal, TypeAlias, get_args

import torch

from minimax_h3.core.constants import Modality
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.packing.positions import (
    audio_positions,
    last_frame_time,
    latent_times,
    text_positions,
    video_positions,
    width_axis,
)

Anchor: TypeAlias = Literal["first", "last"]
"""Which end of the clip a keyframe is tied to."""

PADDING_TAG = -1  # looked up as video by the AdaLN index


class TimeClass(IntEnum):
    """Which clock a row follows. Source: model sheet 1.6."""

    VIDEO = 0  # target video, text and padding
    AUDIO = 1  # target sound
    VISUAL_CONDITION = 2  # keyframes and visual references: held at t = 0.999
    AUDIO_CONDITION = 3  # reference sound, and a locked target sound: held clean


@dataclass(frozen=True, eq=False, slots=True)
class Segment:
    """Rows of one kind that lie together, before they have a place in a sequence.

    Attributes:
        stream: whose rows they are (text, video or audio); None for padding, which is zero input.
        time_class: the clock they follow.
        positions: fp64 [rows, 3].
        tags: int64 [rows], modality tags.
    """

    stream: Modality | None
    time_class: TimeClass
    positions: torch.Tensor
    tags: torch.Tensor


@dataclass(frozen=True, slots=True)
class Span:
    """A segment's place.

    Attributes:
        stream: whose rows they are; None for padding.
        condition: held fixed through all steps.
        start: first row in the packed sequence.
        rows: how many.
        source_start: first row within the stream's own tensor.
    """

    stream: Modality | None
    condition: bool
    start: int
    rows: int
    source_start: int


@dataclass(frozen=True, eq=False)
class PackedLayout:
    """Every row of one packed sequence, S rows. Tensors are on the CPU.

    Attributes:
        spans: segments in packed order; together they cover every row once.
        token_tags: int64 [S], modality tag, -1 for padding. Text rows of a vision block carry the
            video tag and stay text rows in everything else.
        positions: fp64 [S, 3], (t, h, w).
        time_classes: int64 [S], `TimeClass`; document d of a batch counts from 4 d.
    """

    spans: tuple[Span, ...]
    token_tags: torch.Tensor
    positions: torch.Tensor
    time_classes: torch.Tensor

    @property
    def num_rows(self) -> int:
        """Rows of the packed sequence, S."""
        return self.token_tags.numel()

    def stream_spans(self, stream: Modality) -> tuple[Span, ...]:
        """Spans of one stream, in packed order."""
        return tuple(span for span in self.spans if span.stream is stream)

    def stream_rows(self, stream: Modality) -> int:
        """Rows of one stream, conditions included."""
        return sum(span.rows for span in self.stream_spans(stream))

    @cached_property
    def video_indices(self) -> torch.Tensor:
        """Packed positions of the video rows, int64; in one request the conditions come first."""
        return self._indices(Modality.VIDEO)

    @cached_property
    def audio_indices(self) -> torch.Tensor:
        """Packed positions of the audio rows, int64; in one request the conditions come first."""
        return self._indices(Modality.AUDIO)

    @cached_property
    def text_indices(self) -> torch.Tensor:
        """Packed positions of the text rows, int64."""
        return self._indices(Modality.TEXT)

    @property
    def num_condition_video_rows(self) -> int:
        """Video rows that no step may change."""
        return self._condition_rows(Modality.VIDEO)

    @property
    def num_condition_audio_rows(self) -> int:
        """Audio rows that no step may change."""
        return self._condition_rows(Modality.AUDIO)

    def _condition_rows(self, stream: Modality) -> int:
        return sum(span.rows for span in self.stream_spans(stream) if span.condition)

    def _indices(self, stream: Modality) -> torch.Tensor:
        ranges = [
            torch.arange(span.start, span.start + span.rows) for span in self.stream_spans(stream)
        ]
        return torch.cat([torch.arange(0), *ranges])


def text_segment(tags: torch.Tensor) -> Segment:
    """The text rows.

    Args:
        tags: int64 [L]; text (1), or video (0) on the rows of a vision block.

    Raises:
        InvalidRequestError: no rows, or another tag.
    """
    if tags.ndim != 1 or not tags.numel():
        raise InvalidRequestError(f"text_tags: shape {list(tags.shape)}; legal: [L] with L >= 1")
    strange = set(tags.tolist()) - {Modality.VIDEO, Modality.TEXT}
    if strange:
        raise InvalidRequestError(f"text_tags: {min(strange)} is not legal; legal: 0 and 1")
    positions = text_positions(tags.numel())
    return Segment(Modality.TEXT, TimeClass.VIDEO, positions, tags.to(torch.int64))


def keyframe_segment(
    anchor: Anchor, origin: float, latent_frames: int, height: int, width: int
) -> Segment:
    """One keyframe on the target's own grid, at the first or the last pixel frame's time.

    Raises:
        InvalidRequestError: another anchor.
    """
    if anchor not in get_args(Anchor):
        raise InvalidRequestError(f"keyframe anchor: {anchor!r} is not legal; legal: first, last")
    time = origin if anchor == "first" else last_frame_time(latent_frames, origin)
    positions = video_positions(torch.tensor([time], dtype=torch.float64), height, width)
    return media_segment(Modality.VIDEO, TimeClass.VISUAL_CONDITION, positions)


def audio_segment(
    origin: float, audio_latents: int, height: int, width: int, *, locked: bool = False
) -> Segment:
    """The target sound; it sits at the ends of the target's width axis.

    Args:
        origin: time of the first latent.
        audio_latents: per channel, A.
        height: target latent lines.
        width: target latent columns.
        locked: the sound is given by the request, so its rows are held clean.
    """
    positions = audio_positions(audio_latents, origin, width_axis(height, width))
    time_class = TimeClass.AUDIO_CONDITION if locked else TimeClass.AUDIO
    return media_segment(Modality.AUDIO, time_class, positions)


def video_segment(origin: float, latent_frames: int, height: int, width: int) -> Segment:
    """The target video."""
    times = latent_times(latent_frames, origin)
    return media_segment(Modality.VIDEO, TimeClass.VIDEO, video_positions(times, height, width))


def padding_segment(rows: int) -> Segment:
    """Rows without content, for kernels that want a round length; a document of their own."""
    tags = torch.full((rows,), PADDING_TAG)
    return Segment(None, TimeClass.VIDEO, torch.zeros(rows, 3, dtype=torch.float64), tags)


def media_segment(stream: Modality, time_class: TimeClass, positions: torch.Tensor) -> Segment:
    """Rows of picture or sound, tagged with their own stream."""
    return Segment(stream, time_class, positions, torch.full((positions.shape[0],), int(stream)))


def assemble(segments: Sequence[Segment]) -> PackedLayout:
    """Give segments their places, in the order given; rows of a stream count on from its last."""
    spans: list[Span] = []
    start, used = 0, dict.fromkeys((None, *Modality), 0)
    for segment in segments:
        rows = segment.tags.numel()
        condition = segment.time_class in (
            TimeClass.VISUAL_CONDITION,
            TimeClass.AUDIO_CONDITION,
        )
        spans.append(Span(segment.stream, condition, start, rows, used[segment.stream]))
        start += rows
        used[segment.stream] += rows
    return PackedLayout(
        spans=tuple(spans),
        token_tags=torch.cat([segment.tags for segment in segments]),
        positions=torch.cat([segment.positions for segment in segments]),
        time_classes=torch.cat(
            [torch.full_like(segment.tags, int(segment.time_class)) for segment in segments]
        ),
    )


def pack_keyframe_request(
    text_tags: torch.Tensor,
    *,
    latent_frames: int,
    height: int,
    width: int,
    audio_latents: int,
    anchors: Sequence[Anchor] = (),
    audio_locked: bool = False,
) -> PackedLayout:
    """Layout of `t2va` and `fl2va`: [text | keyframes | sound | video].

    The media clock starts at the number of text rows, so a longer prompt moves every media row.

    Args:
        text_tags: int64 [L].
        latent_frames: target latent frames, T.
        height: target latent lines, h.
        width: target latent columns, w.
        audio_latents: per channel, A.
        anchors: one for each keyframe, in packed order; none for `t2va`.
        audio_locked: the target sound is given, see `audio_segment`.

    Source: model sheet 1.4, pipeline sheet 4.1.
    """
    origin = float(text_tags.numel())
    return assemble(
        [
            text_segment(text_tags),
            *(keyframe_segment(a, origin, latent_frames, height, width) for a in anchors),
            audio_segment(origin, audio_latents, height, width, locked=audio_locked),
            video_segment(origin, latent_frames, height, width),
        ]
    )
