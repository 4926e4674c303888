"""The packed sequence from the sheets' tables, one row after another in plain Python."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from minimax_h3.core.conditions import Condition


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
    return rows + _targets(origin, latent_frames, height, width, audio_latents)


def reference_rows(
    text_tags: Sequence[int],
    latent_frames: int,
    height: int,
    width: int,
    audio_latents: int,
    references: Sequence[Condition],
) -> list[Row]:
    """Rows of [text | references | sound | video]."""
    rows = [Row("text", tag, "video", float(i), 0.0, 0.0) for i, tag in enumerate(text_tags)]
    clock, target_columns = float(len(text_tags)), axis(width, height * width)
    for each in references:
        h, w = each.height // 16, each.width // 16
        starts = start_times(each.latent_frames)
        columns = axis(w, h * w) if each.kind == "video" else target_columns
        for column in (columns[0], columns[-1]):
            rows += [
                Row("audio", 2, "audio_condition", clock + j, 0.0, column)
                for j in range(each.audio_latents)
            ]
        if each.kind != "audio":
            cells = [(line, column) for line in axis(h, h * w) for column in axis(w, h * w)]
            rows += [
                Row("video", 0, "visual_condition", clock + starts[k], *cell)
                for k in range(each.latent_frames)
                for cell in cells
            ]
        clock += 1.0 if each.kind == "image" else max(float(each.audio_latents), starts[-1])
    return rows + _targets(clock, latent_frames, height, width, audio_latents)


def _targets(
    origin: float, latent_frames: int, height: int, width: int, audio_latents: int
) -> list[Row]:
    lines, columns = axis(height, height * width), axis(width, height * width)
    starts, rows = start_times(latent_frames), []
    for w in (columns[0], columns[-1]):
        rows += [Row("audio", 2, "audio", origin + j, 0.0, w) for j in range(audio_latents)]
    for k in range(latent_frames):
        rows += [Row("video", 0, "video", origin + starts[k], h, w) for h in lines for w in columns]
    return rows
