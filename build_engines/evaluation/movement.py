"""How an object moves: the kind of motion, its direction, and the moments at which it bounces."""

from dataclasses import dataclass

import numpy as np

from build_engines.evaluation.objects import Array, Track
from minimax_h3.core.constants import VIDEO_FPS

STILL = "still"
_MIN_FRAMES = 16
_MIN_DARK_SHARE, _MAX_DARK_SHARE = 0.15, 0.85
_MIN_SWITCHES = 4
_MIN_GROWTH = 1.4  # of the radius over the whole clip
_MIN_TURN = 0.75  # of a full turn
_MAX_RING_SPREAD = 0.25  # of the ring's radius
_MIN_RING = 2.5  # pixels
_MIN_HOP_SHARE = 0.12  # of the height of the canvas
_MIN_TRAVEL = 4.0  # pixels
_BOUNCE_FIT = 3  # frames on each side of a bounce


@dataclass(frozen=True, slots=True)
class Movement:
    """Name of the motion and of its direction; bounce times in seconds."""

    motion: str
    direction: str
    bounces: tuple[float, ...]


def classify(track: Track) -> Movement:
    """Name the motion of an object over a clip; it is still in a picture or a glimpse."""
    if len(track.visible) < _MIN_FRAMES:
        return Movement(STILL, "", ())
    if _blinks(track):
        return Movement("blink", "on and off", ())
    seen = np.flatnonzero(track.visible)
    if len(seen) < _MIN_FRAMES:
        return Movement(STILL, "", ())
    x, y, area = track.x[seen], track.y[seen], track.area[seen]
    turn = _turn(x, y)
    if abs(turn) >= _MIN_TURN:
        return Movement("orbit", "clockwise" if turn > 0 else "counterclockwise", ())
    bounces = bounce_frames(track)
    hop = float(np.quantile(y, 0.98) - np.quantile(y, 0.02))
    if len(bounces) >= 2 and hop > _MIN_HOP_SHARE * track.cover.shape[1]:
        times = tuple(_contact(track, frame) / VIDEO_FPS for frame in bounces)
        return Movement("bounce", _sideways(x), times)
    growth = float(np.sqrt(np.median(area[-6:]) / np.median(area[:6])))
    if max(growth, 1 / growth) >= _MIN_GROWTH:
        return Movement("grow", "bigger" if growth > 1 else "smaller", ())
    return _straight(x, y)


def _blinks(track: Track) -> bool:
    dark = 1 - float(track.visible.mean())
    switches = int(np.abs(np.diff(track.visible.astype(int))).sum())
    return _MIN_DARK_SHARE < dark < _MAX_DARK_SHARE and switches >= _MIN_SWITCHES


def _turn(x: Array, y: Array) -> float:
    """Turns around the middle of a ring, clockwise positive; 0 if the path is no ring."""
    middle_x, middle_y, radius = _fit_circle(x, y)
    away = np.hypot(x - middle_x, y - middle_y)
    if radius < _MIN_RING or away.std() > _MAX_RING_SPREAD * radius:
        return 0.0
    angles = np.unwrap(np.arctan2(y - middle_y, x - middle_x))
    steps = np.diff(angles)
    turned = float(angles[-1] - angles[0])
    forward = float((np.sign(steps) == np.sign(turned)).mean())
    # A bounce that resembles an arc goes back the way it came.
    return turned / (2 * np.pi) if forward > 0.9 else 0.0


def _fit_circle(x: Array, y: Array) -> tuple[float, float, float]:
    """Least-squares circle: centre and radius."""
    system = np.stack((x, y, np.ones_like(x)), axis=1).astype(np.float64)
    a, b, c = np.linalg.lstsq(system, (x**2 + y**2).astype(np.float64), rcond=None)[0]
    return float(a / 2), float(b / 2), float(np.sqrt(max(c + (a**2 + b**2) / 4, 0)))


def bounce_frames(track: Track) -> list[int]:
    """Frames at which the object is lowest and turns back at once, away from the clip's ends."""
    y = track.y
    if not track.visible.all():
        return []
    low, high = np.quantile(y, (0.02, 0.98))
    frames: list[int] = []
    for frame in range(_BOUNCE_FIT, len(y) - _BOUNCE_FIT):
        around = y[frame - _BOUNCE_FIT : frame + _BOUNCE_FIT + 1]
        is_lowest = y[frame] == around.max() and y[frame] > high - 0.45 * (high - low)
        turns_at_once = y[frame] - max(around[0], around[-1]) > 0.08 * (high - low)
        if is_lowest and turns_at_once and (not frames or frame - frames[-1] > _BOUNCE_FIT):
            frames.append(frame)
    return frames


def _contact(track: Track, frame: int) -> float:
    """Where the paths before and after a bounce meet, in frames."""
    before = np.arange(frame - _BOUNCE_FIT, frame)
    after = np.arange(frame + 1, frame + 1 + _BOUNCE_FIT)
    falling = np.polyfit(before - frame, track.y[before], 2)
    rising = np.polyfit(after - frame, track.y[after], 2)
    near = np.linspace(-1, 1, 401)
    gap = np.abs(np.polyval(falling, near) - np.polyval(rising, near))
    return frame + float(near[gap.argmin()])


def _sideways(x: Array) -> str:
    travel = float(np.median(x[-4:]) - np.median(x[:4]))
    if abs(travel) < _MIN_TRAVEL:
        return "in place"
    return "right" if travel > 0 else "left"


def _straight(x: Array, y: Array) -> Movement:
    across = float(np.median(x[-4:]) - np.median(x[:4]))
    along = float(np.median(y[-4:]) - np.median(y[:4]))
    if max(abs(across), abs(along)) < _MIN_TRAVEL:
        return Movement(STILL, "", ())
    if abs(across) >= abs(along):
        return Movement("drift", "right" if across > 0 else "left", ())
    return Movement("drift", "down" if along > 0 else "up", ())
