"""Documents: several requests, or one request and its padding, in one packed sequence.

Attention never crosses a document's bounds. Bounds are host integers: a kernel launch must not wait
for the device to learn them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from minimax_h3.core.constants import Modality
from minimax_h3.packing.layout import (
    PackedLayout,
    Span,
    TimeClass,
    assemble,
    padding_segment,
)


def document_bounds(lengths: Sequence[int]) -> tuple[int, ...]:
    """Cumulative row bounds: lengths 10 and 20 give (0, 10, 30). Empty documents are left out."""
    bounds = [0]
    for length in lengths:
        if length:
            bounds.append(bounds[-1] + length)
    return tuple(bounds)


@dataclass(frozen=True, eq=False, slots=True)
class PackedBatch:
    """Several requests in one packed sequence.

    Attributes:
        layout: all rows; the rows of a stream follow each other in request order.
        cu_seqlens: row bounds of the documents, padding included.
        video_rows, audio_rows: rows of each request, to cut velocities apart again.
    """

    layout: PackedLayout
    cu_seqlens: tuple[int, ...]
    video_rows: tuple[int, ...]
    audio_rows: tuple[int, ...]


def pack_batch(layouts: Sequence[PackedLayout], multiple: int = 1) -> PackedBatch:
    """Concatenate requests; each keeps its positions, tags and clocks.

    Args:
        layouts: one or more requests without padding.
        multiple: pad the end of the sequence to a multiple of this many rows. Padding follows the
            video clock of the last request and is seen by nobody.

    Source: pipeline sheet 4.3 and 4.4.
    """
    parts = list(layouts)
    lengths = [layout.num_rows for layout in parts]
    classes = [
        layout.time_classes + len(TimeClass) * document for document, layout in enumerate(parts)
    ]
    padding = -sum(lengths) % multiple
    if padding:
        pad = assemble([padding_segment(padding)])
        parts.append(pad)
        lengths.append(padding)
        classes.append(pad.time_classes + len(TimeClass) * (len(layouts) - 1))
    return PackedBatch(
        layout=PackedLayout(
            spans=_joined_spans(parts),
            token_tags=torch.cat([layout.token_tags for layout in parts]),
            positions=torch.cat([layout.positions for layout in parts]),
            time_classes=torch.cat(classes),
        ),
        cu_seqlens=document_bounds(lengths),
        video_rows=tuple(each.stream_rows(Modality.VIDEO) for each in layouts),
        audio_rows=tuple(each.stream_rows(Modality.AUDIO) for each in layouts),
    )


def _joined_spans(layouts: Sequence[PackedLayout]) -> tuple[Span, ...]:
    spans: list[Span] = []
    start, used = 0, dict.fromkeys((None, *Modality), 0)
    for layout in layouts:
        for span in layout.spans:
            place, source = start + span.start, used[span.stream]
            spans.append(replace(span, start=place, source_start=source))
            used[span.stream] += span.rows
        start += layout.num_rows
    return tuple(spans)


def text_bounds(layout: PackedLayout, cu_seqlens: Sequence[int]) -> tuple[int, ...]:
    """Document bounds within the text stream, for the refiner; documents without text are left out.

    Args:
        layout: the packed sequence.
        cu_seqlens: its document bounds.
    """
    lengths = [
        sum(span.rows for span in layout.stream_spans(Modality.TEXT) if start <= span.start < end)
        for start, end in pairwise(cu_seqlens)
    ]
    return document_bounds(lengths)
