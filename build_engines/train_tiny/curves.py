"""Training curves as JSON and as a picture."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw

_WIDTH, _PLOT_HEIGHT, _MARGIN = 900, 180, 34
_HIDDEN = ("step", "seconds")
Entries = Sequence[dict[str, float]]


def write_curves(folder: Path, steps: Entries, evaluations: Entries) -> None:
    """Write `curves.json` and `curves.png`: a plot per figure, over seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"steps": list(steps), "evaluations": list(evaluations)}
    (folder / "curves.json").write_text(json.dumps(content, indent=1) + "\n")
    plots = [(name, steps) for name in _names(steps)]
    plots += [(name, evaluations) for name in _names(evaluations)]
    picture = Image.new("RGB", (_WIDTH, max(1, len(plots)) * _PLOT_HEIGHT), "white")
    pen = ImageDraw.Draw(picture)
    for row, (name, entries) in enumerate(plots):
        _plot(pen, row * _PLOT_HEIGHT, name, entries)
    picture.save(folder / "curves.png")


def _names(entries: Entries) -> list[str]:
    return [name for name in entries[0] if name not in _HIDDEN] if entries else []


def _plot(pen: ImageDraw.ImageDraw, top: int, name: str, entries: Entries) -> None:
    values = [entry[name] for entry in entries]
    is_log = min(values) > 0 and max(values) > 20 * min(values)
    heights = [math.log10(value) if is_log else value for value in values]
    seconds = [entry["seconds"] for entry in entries]
    low, span = min(heights), max(max(heights) - min(heights), 1e-12)
    longest = max(seconds[-1], 1e-9)
    left, bottom = _MARGIN, top + _PLOT_HEIGHT - _MARGIN
    room_x, room_y = _WIDTH - 2 * _MARGIN, _PLOT_HEIGHT - 2 * _MARGIN
    points = [
        (left + room_x * second / longest, bottom - room_y * (height - low) / span)
        for second, height in zip(seconds, heights, strict=True)
    ]
    pen.rectangle((left, top + _MARGIN, left + room_x, bottom), outline="grey")
    if len(points) > 1:
        pen.line(points, fill="blue", width=2)
    scale = " (log)" if is_log else ""
    words = f"{name}{scale}: {min(values):.4g} to {max(values):.4g}, last {values[-1]:.4g}; "
    pen.text((left, top + 12), f"{words}{longest:.0f} s", fill="black")
