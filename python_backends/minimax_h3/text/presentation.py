"""What the text encoder sees: segments of text and vision blocks -> token ids and modality tags.

Segments are tokenised one by one and concatenated, because joining the texts first would merge
tokens across a border. Source: model sheet section 5, pipeline sheet 1.7.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minimax_h3.core.constants import Modality
from minimax_h3.text.tokenizer import IMAGE_PAD, VIDEO_PAD, VISION_END, VISION_START, Tokenizer

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TextSegment:
    """Text that is tokenised verbatim, tagged as text."""

    text: str


@dataclass(frozen=True, slots=True)
class VisionSegment:
    """Start marker, pads, end marker; all of it is tagged as video.

    Attributes:
        pads: vision features of the block, one a token.
        is_video: the block holds a pair of video frames instead of an image.
    """

    pads: int
    is_video: bool = False


Segment = TextSegment | VisionSegment


def present(segments: Sequence[Segment], tokenizer: Tokenizer) -> tuple[Ints, Ints]:
    """Tokenise segments.

    Returns:
        Token ids and modality tags, each int64 [L].
    """
    ids, tags = [], []
    for segment in segments:
        if isinstance(segment, TextSegment):
            part, tag = tokenizer.encode(segment.text), Modality.TEXT
        else:
            part, tag = _vision_block(segment, tokenizer), Modality.VIDEO
        ids.append(part)
        tags.append(np.full(len(part), tag, dtype=np.int64))
    return np.concatenate(ids), np.concatenate(tags)


def present_t2va(prompt: str, tokenizer: Tokenizer) -> tuple[Ints, Ints]:
    """The prompt alone, verbatim; see `present`."""
    return present([TextSegment(prompt)], tokenizer)


def _vision_block(segment: VisionSegment, tokenizer: Tokenizer) -> Ints:
    pad = tokenizer.special_id(VIDEO_PAD if segment.is_video else IMAGE_PAD)
    block = np.full(segment.pads + 2, pad, dtype=np.int64)
    block[0] = tokenizer.special_id(VISION_START)
    block[-1] = tokenizer.special_id(VISION_END)
    return block
