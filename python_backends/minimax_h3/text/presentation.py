"""What the text encoder sees: labels, vision blocks and the prompt -> token ids and modality tags.

Segments are tokenised one by one and concatenated, because joining the texts first would merge
tokens across a border. Everything here follows from the facts of the conditions, so the length of a
presentation is known before a file is decoded. Source: model sheet section 5, pipeline sheet 1.7.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minimax_h3.core.conditions import DRIVING_AUDIO, VIDEO, Condition
from minimax_h3.core.constants import (
    PRESENTED_FRAME_STEP,
    VIDEO_FPS,
    VISION_MERGE,
    VISION_PAIR_FRAMES,
    VISION_PATCH_PIXELS,
    Modality,
)
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.text.tokenizer import IMAGE_PAD, VIDEO_PAD, VISION_END, VISION_START, Tokenizer
from minimax_h3.text.vision_rules import VisionRules

Ints = NDArray[np.int64]
MIN_SAMPLED_FRAMES = VISION_PAIR_FRAMES


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


@dataclass(frozen=True, slots=True)
class Block:
    """One condition as the presentation shows it.

    Attributes:
        width, height: prepared pixels; 0 for sound alone.
        sampled_frames: frames shown: 1 for a picture, every 12th of a video, 0 for sound alone.
        grid: patches (t, h, w); t counts pairs of a video.
        has_sound: the block is labelled as a sound, before the video it belongs to.
        is_video: the frames are those of a video.
    """

    width: int
    height: int
    sampled_frames: int
    grid: tuple[int, int, int]
    has_sound: bool
    is_video: bool

    @property
    def pads(self) -> int:
        """Tokens of the picture, or of each pair of frames."""
        return self.grid[1] * self.grid[2] // VISION_MERGE**2

    @property
    def rows(self) -> int:
        """Patch rows of one frame each: a picture is stored once, a pair of frames as two rows."""
        return math.prod(self.grid) * (VISION_PAIR_FRAMES if self.is_video else 1)

    @property
    def pair_times_s(self) -> list[float]:
        """Mean time of each pair of frames, in seconds; the last frame of an odd count is held."""
        step_s = PRESENTED_FRAME_STEP / VIDEO_FPS
        last = self.sampled_frames - 1
        return [(first + min(first + 1, last)) / 2 * step_s for first in range(0, last + 1, 2)]


def sampled_frames(presented_frames: int) -> int:
    """Frames that the text encoder sees of a video of 24 fps frames: frame 0 and every 12th."""
    return -(-presented_frames // PRESENTED_FRAME_STEP)


def blocks_of(conditions: Sequence[Condition], rules: VisionRules) -> tuple[Block, ...]:
    """The blocks of a request's presentation, in the caller's order; a driving audio has none.

    Raises:
        InvalidRequestError: a video too short to show a pair of frames.
    """
    return tuple(
        _block(condition, rules) for condition in conditions if condition.kind != DRIVING_AUDIO
    )


def present_request(
    prompt: str, blocks: Sequence[Block], tokenizer: Tokenizer
) -> tuple[Ints, Ints]:
    """Tokenise a request: a label and a vision block per picture or pair, then the prompt verbatim.

    Args:
        prompt: used as it is.
        blocks: from `blocks_of`; none for t2va.
        tokenizer: the checkpoint's.

    Returns:
        Token ids and modality tags, each int64 [L].

    Raises:
        InvalidRequestError: the prompt spells a token that stands for vision features.
    """
    ids, tags = present([TextSegment(prompt)], tokenizer)
    for token in (IMAGE_PAD, VIDEO_PAD):
        if tokenizer.special_id(token) in ids:
            raise InvalidRequestError(
                f"prompt: {token} is not legal in it; legal: text without {IMAGE_PAD} and "
                f"{VIDEO_PAD}, which stand for pictures"
            )
    if not blocks:
        return ids, tags
    shown_ids, shown_tags = present(list(_segments(blocks)), tokenizer)
    return np.concatenate((shown_ids, ids)), np.concatenate((shown_tags, tags))


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


def _segments(blocks: Sequence[Block]) -> Iterator[Segment]:
    """Labels and vision blocks; every kind is counted from 1."""
    pictures = videos = sounds = 0
    for block in blocks:
        if block.has_sound:
            sounds += 1
            yield TextSegment(f"<Audio {sounds}>: ")
        if block.is_video:
            videos += 1
            yield TextSegment(f"<Video {videos}>: ")
            for time_s in block.pair_times_s:
                # One digit, half to even: the first pair, at 0.25 s, reads 0.2.
                yield TextSegment(f"<{time_s:.1f} seconds>")
                yield VisionSegment(block.pads, is_video=True)
        elif block.sampled_frames:
            pictures += 1
            yield TextSegment(f"<Picture {pictures}>: ")
            yield VisionSegment(block.pads)


def _block(condition: Condition, rules: VisionRules) -> Block:
    width, height = condition.width, condition.height
    is_video = condition.kind == VIDEO
    frames = sampled_frames(condition.presented_frames)
    if is_video and frames < MIN_SAMPLED_FRAMES:
        raise InvalidRequestError(
            f"references[{condition.source}]: a video of {condition.presented_frames} frames at "
            f"{VIDEO_FPS} fps is not legal; legal: {PRESENTED_FRAME_STEP + 1} frames or more"
        )
    shown = (0, 0)
    if is_video:
        shown = rules.video_size(frames, width, height)
    elif frames:
        shown = rules.picture_size(width, height)
    pairs = -(-frames // VISION_PAIR_FRAMES) if is_video else frames
    grid = (pairs, shown[1] // VISION_PATCH_PIXELS, shown[0] // VISION_PATCH_PIXELS)
    return Block(width, height, frames, grid, condition.audio_latents > 0, is_video)


def _vision_block(segment: VisionSegment, tokenizer: Tokenizer) -> Ints:
    pad = tokenizer.special_id(VIDEO_PAD if segment.is_video else IMAGE_PAD)
    block = np.full(segment.pads + 2, pad, dtype=np.int64)
    block[0] = tokenizer.special_id(VISION_START)
    block[-1] = tokenizer.special_id(VISION_END)
    return block
