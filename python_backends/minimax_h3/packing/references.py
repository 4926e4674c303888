"""The packed sequence of `ref2va`: references take their turns on the clock before the targets."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from minimax_h3.core.conditions import AUDIO, IMAGE, VIDEO, Condition
from minimax_h3.core.constants import Modality
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.packing.layout import (
    PackedLayout,
    Segment,
    TimeClass,
    assemble,
    audio_segment,
    media_segment,
    text_segment,
    video_segment,
)
from minimax_h3.packing.positions import (
    audio_positions,
    latent_span,
    latent_times,
    video_positions,
    width_axis,
)

IMAGE_UNITS = 1.0  # of the clock; a picture takes one unit, not a latent frame's 5/3


def reference_segments(
    reference: Condition, clock: float, target_columns: NDArray[np.float64]
) -> tuple[list[Segment], float]:
    """Rows of one reference, and where the clock stands behind it.

    A video's own sound comes in front of its picture and starts with it. Sound sits at the two ends
    of a width axis: of the video it belongs to, or of the target when it stands alone.

    Args:
        reference: an image, a video or a sound.
        clock: time at which the reference begins, in units of 1/40 s.
        target_columns: width axis of the target.

    Raises:
        InvalidRequestError: another kind of condition.

    Source: model sheet 1.5, pipeline sheet 4.2.
    """
    height, width = reference.latent_height, reference.latent_width
    if reference.kind == IMAGE:
        times = torch.tensor([clock], dtype=torch.float64)
        return [_visual(times, height, width)], clock + IMAGE_UNITS
    if reference.kind == AUDIO:
        return [_sound(reference, clock, target_columns)], clock + float(reference.audio_latents)
    if reference.kind != VIDEO:
        raise InvalidRequestError(
            f"reference: {reference.kind!r} is not legal; legal: {IMAGE}, {VIDEO}, {AUDIO}"
        )
    picture = _visual(latent_times(reference.latent_frames, clock), height, width)
    sound = [_sound(reference, clock, width_axis(height, width))] * bool(reference.audio_latents)
    span = max(float(reference.audio_latents), latent_span(reference.latent_frames))
    return [*sound, picture], clock + span


def pack_reference_request(
    text_tags: torch.Tensor,
    *,
    latent_frames: int,
    height: int,
    width: int,
    audio_latents: int,
    references: Sequence[Condition],
    audio_locked: bool = False,
) -> PackedLayout:
    """Layout of `ref2va`: [text | references | sound | video].

    The clock starts at the number of text rows; every reference moves it on, so another order of
    references is another request.

    Args:
        text_tags: int64 [L].
        latent_frames: target latent frames, T.
        height: target latent lines, h.
        width: target latent columns, w.
        audio_latents: per channel, A.
        references: in the caller's order.
        audio_locked: the target sound is given, see `audio_segment`.

    Source: model sheet 1.4, pipeline sheet 4.1.
    """
    clock = float(text_tags.numel())
    columns = width_axis(height, width)
    segments = [text_segment(text_tags)]
    for reference in references:
        block, clock = reference_segments(reference, clock, columns)
        segments += block
    return assemble(
        [
            *segments,
            audio_segment(clock, audio_latents, height, width, locked=audio_locked),
            video_segment(clock, latent_frames, height, width),
        ]
    )


def _visual(times: torch.Tensor, height: int, width: int) -> Segment:
    positions = video_positions(times, height, width)
    return media_segment(Modality.VIDEO, TimeClass.VISUAL_CONDITION, positions)


def _sound(reference: Condition, clock: float, columns: NDArray[np.float64]) -> Segment:
    positions = audio_positions(reference.audio_latents, clock, columns)
    return media_segment(Modality.AUDIO, TimeClass.AUDIO_CONDITION, positions)
