"""A picture of many clips: frames, waveform and prompt of each."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from build_engines.evaluation.library import Clip
from build_engines.evaluation.tones import Wave

_COLOURS = 128
_FRAMES, _HEIGHT, _WAVE_WIDTH, _LINE, _GAP = 6, 72, 200, 14, 6
_WIDEST = 2  # widths of a frame, in heights, that a row has room for


class ContactSheet:
    """Collects clips; holds their thumbnails only."""

    def __init__(self, most: int = 60) -> None:
        self._most = most
        self._rows: list[Image.Image] = []

    def add(self, title: str, clip: Clip) -> None:
        """Add a clip, unless the sheet is full."""
        if len(self._rows) >= self._most:
            return
        width = _FRAMES * int(_WIDEST * _HEIGHT) + _WAVE_WIDTH
        row = Image.new("RGB", (width, _HEIGHT + _LINE + _GAP), "white")
        pen = ImageDraw.Draw(row)
        pen.text((2, 1), title, fill="black")
        left = 0
        for index in np.linspace(0, len(clip.frames) - 1, _FRAMES).astype(int):
            frame = Image.fromarray(clip.frames[index])
            shown = frame.resize((round(frame.width * _HEIGHT / frame.height), _HEIGHT))
            row.paste(shown, (left, _LINE))
            left += shown.width + 2
        _draw_wave(pen, clip.wave, left + 2)
        self._rows.append(row)

    def write(self, path: Path) -> None:
        """Write the sheet as a PNG of few colours; nothing was added, nothing is written."""
        if not self._rows:
            return
        height = sum(row.height for row in self._rows)
        sheet = Image.new("RGB", (self._rows[0].width, height), "white")
        top = 0
        for row in self._rows:
            sheet.paste(row, (0, top))
            top += row.height
        few = sheet.quantize(_COLOURS, dither=Image.Dither.NONE)  # a fifth of the bytes
        few.save(path, optimize=True)


def _draw_wave(pen: ImageDraw.ImageDraw, wave: Wave, left: int) -> None:
    """Peaks of both channels, one above the other."""
    half = _HEIGHT // 2
    for channel, colour in ((0, "steelblue"), (1, "indianred")):
        middle = _LINE + half // 2 + channel * half
        for x, peak in enumerate(_peaks(wave[channel])):
            reach = round(min(float(peak), 1.0) * (half // 2))
            pen.line((left + x, middle - reach, left + x, middle + reach), fill=colour)


def _peaks(samples: Wave) -> Sequence[float]:
    parts = np.array_split(np.abs(samples), _WAVE_WIDTH)
    return [float(part.max()) if len(part) else 0.0 for part in parts]
