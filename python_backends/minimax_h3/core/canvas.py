"""The canvas rule: which width and height a request gets. Source: pipeline sheet section 1.2."""

import math
import re
from dataclasses import dataclass

from minimax_h3.core.constants import CANVAS_MULTIPLE
from minimax_h3.core.refusals import refuse

MAX_RATIO = 4.0
MIN_SIDE, MAX_SIDE = CANVAS_MULTIPLE, 8192
SIDE_LEGAL = f"multiples of {CANVAS_MULTIPLE} from {MIN_SIDE} to {MAX_SIDE}"
RATIO_LEGAL = "W:H between 1:4 and 4:1 (for example 16:9, 9:16, 1:1)"


@dataclass(frozen=True, slots=True)
class CanvasRule:
    """Sizes that a checkpoint was trained on; it may state its own.

    Attributes:
        short_edge: pixels, of clips, keyframes and reference videos.
        max_area: most pixels of these.
        reference_short_edge: pixels, of a reference picture, which has no cap of the area.
        ratio: `W:H` of a request that names none.
    """

    short_edge: int = 768
    max_area: int = 768 * 1344
    reference_short_edge: int = 2048
    ratio: str = "16:9"


RELEASED = CanvasRule()
"""The rule of the released model."""


def canvas_from_ratio(aspect_ratio: str, rule: CanvasRule = RELEASED) -> tuple[int, int]:
    """Canvas of a `W:H` ratio: the rule's short edge, up to its area, sides to the nearest 32.

    Args:
        aspect_ratio: `W:H`.
        rule: the checkpoint's.

    Returns:
        (width, height) in pixels; 16:9 gives (1344, 768).

    Raises:
        InvalidRequestError: not `W:H`, or outside 1:4 .. 4:1.
    """
    match = re.fullmatch(r"(\d{1,5}(?:\.\d{1,4})?):(\d{1,5}(?:\.\d{1,4})?)", aspect_ratio, re.ASCII)
    if match is None or not float(match[1]) or not float(match[2]):
        raise refuse("aspect_ratio", aspect_ratio, RATIO_LEGAL)
    return canvas_from_size(float(match[1]), float(match[2]), rule)


def canvas_from_size(
    source_width: float, source_height: float, rule: CanvasRule = RELEASED
) -> tuple[int, int]:
    """Canvas of a source's own ratio, by the same rule; see `canvas_from_ratio`."""
    ratio = source_width / source_height
    if not 1 / MAX_RATIO <= ratio <= MAX_RATIO:
        raise refuse("aspect_ratio", f"{source_width:g}:{source_height:g}", RATIO_LEGAL)
    width, height = (
        (rule.short_edge * ratio, float(rule.short_edge))
        if ratio >= 1
        else (
            float(rule.short_edge),
            rule.short_edge / ratio,
        )
    )
    area = width * height
    if area > rule.max_area:
        scale = math.sqrt(rule.max_area / area)
        width, height = width * scale, height * scale
    return _to_multiple(width), _to_multiple(height)


def _to_multiple(side: float) -> int:
    return round(side / CANVAS_MULTIPLE) * CANVAS_MULTIPLE


def check_canvas(width: int, height: int) -> None:
    """Refuse an explicit canvas that the model cannot draw exactly.

    Raises:
        InvalidRequestError: names the side, its value and the legal range.
    """
    for name, side in (("width", width), ("height", height)):
        if side % CANVAS_MULTIPLE or not MIN_SIDE <= side <= MAX_SIDE:
            raise refuse(name, side, f"{SIDE_LEGAL}; nearest: {_nearest(side)}")
    if not 1 / MAX_RATIO <= width / height <= MAX_RATIO:
        low = math.ceil(height / MAX_RATIO / CANVAS_MULTIPLE) * CANVAS_MULTIPLE
        high = min(int(height * MAX_RATIO), MAX_SIDE)
        raise refuse(
            "width", width, f"{low}..{high} with height {height}, a ratio between 1:4 and 4:1"
        )


def _nearest(side: int) -> str:
    """The legal sides next to an illegal one, in words."""
    inside = min(max(side, MIN_SIDE), MAX_SIDE)
    below = inside // CANVAS_MULTIPLE * CANVAS_MULTIPLE
    return f"{below}" if below == inside else f"{below} or {below + CANVAS_MULTIPLE}"
