"""The packed sequence from the sheets' tables, one row after another in plain Python."""

import math
from collections.abc import Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """One packed row: its stream, tag, clock and coordinates."""

    stream: str
    tag: int
    clock: str
    t: float
    h: float
    w: float


def axis(cells: int, area: int) -> list[float]:
    """Coordinates of one spatial axis for a patch of two cells."""
    ratio, points = cells / math.sqrt(area), cells // 2
    return [32 * ((1 - ratio) / 2 + ratio * j / points) for j in range(points)]


def start_times(latent_frames: int) -> list[float]:
    """Start of each latent frame, and the end of the last one behind them."""
    starts = [0.0]
    for k in range(latent_frames):
        starts.append(starts[-1] + 5 / 3 * (1, 4, 4, 4, 4)[k % 5])
    return starts


def packed_rows(
    text_tags: Sequence[int],
    latent_frames: int,
    height: int,
    width: int,
    audio_latents: int,
    anchors: Sequence[str] = (),
) -> list[Row]:
    """Rows of [text | keyframes | sound | video]."""
    origin = float(len(text_tags))
    lines, columns = axis(height, height * width), axis(width, height * width)
    cells = [(h, w) for h in lines for w in columns]
    starts = start_times(latent_frames)
    rows = [Row("text", tag, "video", float(i), 0.0, 0.0) for i, tag in enumerate(text_tags)]
    for anchor in anchors:
        t = origin if anchor == "first" else origin + starts[-1] - 5 / 3
        rows += [Row("video", 0, "visual_condition", t, h, w) for h, w in cells]
    for w in (columns[0], columns[-1]):
        rows += [Row("audio", 2, "audio", origin + j, 0.0, w) for j in range(audio_latents)]
    for k in range(latent_frames):
        rows += [Row("video", 0, "video", origin + starts[k], h, w) for h, w in cells]
    return rows
