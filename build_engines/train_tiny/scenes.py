"""Scenes: what moves where, drawn from a seed, as plain objects and as tensors for rendering.

Every motion is one closed form of time, so that a picture, a sound sample and the ground truth come
from the same numbers at any rate. For an object, with t in seconds and pixels on the canvas:

    phase = fraction((t - start) / period)
    x = px + vx t + orbit cos(angle + omega t)
    y = py + vy t + orbit sin(angle + omega t) - hop 4 phase (1 - phase)
    radius = r0 + growth t
    it is seen and heard while phase < duty

A bounce is the moment at which the phase returns to 0 while `hop` is not 0.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from build_engines.train_tiny import vocabulary as words
from minimax_h3.core.constants import VIDEO_FPS

MAX_OBJECTS = 2
_EDGE = 3.0  # pixels, at a height of 128, that stay free at the border of an object's box
_REACH = 1.15  # farthest point of a shape, in radii
_DUTY = 0.55
# Order of the motion parameters in the tensor form.
PARAMETERS = (
    *("px", "py", "vx", "vy", "orbit", "angle", "omega", "hop"),
    *("start", "period", "duty", "r0", "growth"),
)


@dataclass(slots=True)
class SceneObject:
    """One shape, its look, what it does and the parameters of its motion."""

    shape: int
    colour: int
    size: int
    motion: int
    direction: str
    speed: str
    pitch_hz: float
    rgb: tuple[float, float, float]
    px: float = 0.0
    py: float = 0.0
    vx: float = 0.0
    vy: float = 0.0
    orbit: float = 0.0
    angle: float = 0.0
    omega: float = 0.0
    hop: float = 0.0
    start: float = 0.0
    period: float = 1.0
    duty: float = 2.0
    r0: float = 1.0
    growth: float = 0.0

    def radius(self, time_s: float) -> float:
        """Radius in pixels at a time."""
        return self.r0 + self.growth * time_s

    def bounce_times(self, seconds: float) -> list[float]:
        """Times of contact with the floor, in seconds from the start of the clip."""
        if not self.hop:
            return []
        first = math.ceil(-self.start / self.period)
        times = [self.start + (first + count) * self.period for count in range(64)]
        return [time for time in times if 0 <= time < seconds]


@dataclass(slots=True)
class Scene:
    """A ground and one or two objects, the left one first."""

    width: int
    height: int
    num_frames: int
    ground: int
    ground_rgb: tuple[float, float, float]
    objects: list[SceneObject] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Length of the picture."""
        return self.num_frames / VIDEO_FPS

    def bounce_times(self, seconds: float) -> list[float]:
        """Times of contact of all objects, in rising order."""
        return sorted(time for thing in self.objects for time in thing.bounce_times(seconds))


class Draw:
    """Random choices of one scene; the same for the same seed and index on every machine."""

    def __init__(self, seed: int, index: int) -> None:
        self._rng = np.random.default_rng([seed, index])

    def one(self, options: Sequence[int]) -> int:
        """One of the options."""
        return options[int(self._rng.integers(len(options)))]

    def word(self, options: Sequence[str]) -> str:
        """One of the words."""
        return options[int(self._rng.integers(len(options)))]

    def between(self, low: float, high: float) -> float:
        """A number of a range."""
        return float(self._rng.uniform(low, high))

    def chance(self, share: float) -> bool:
        """True in this share of the cases."""
        return bool(self._rng.random() < share)

    def shade(self, colour: int) -> tuple[float, float, float]:
        """A shade of a named colour, RGB in [0, 1]."""
        jitter = self._rng.uniform(-words.COLOUR_JITTER, words.COLOUR_JITTER, 3)
        rgb = np.clip(np.array(words.COLOUR_VALUES[colour]) + jitter, 0, 255) / 255
        return float(rgb[0]), float(rgb[1]), float(rgb[2])


def draw_scene(
    seed: int,
    index: int,
    *,
    canvas: tuple[int, int] | None = None,
    num_frames: int | None = None,
    num_objects: int | None = None,
) -> Scene:
    """Draw scene `index` of a seed.

    Args:
        seed: of the set.
        index: of the scene in it; scenes do not depend on one another.
        canvas: width and height in pixels; drawn if None.
        num_frames: drawn if None.
        num_objects: 1 or 2; drawn if None, one in three scenes has two.

    Returns:
        A scene whose objects stay inside the canvas and never cover one another.

    Raises:
        ValueError: a canvas higher than wide, in whose halves two objects have no room.
    """
    if canvas is not None and canvas[0] < canvas[1]:
        raise ValueError(f"canvas {canvas} is not legal; legal: at least as wide as high")
    draw = Draw(seed, index)
    width, height = words.CANVASES[draw.one(range(len(words.CANVASES)))]
    if canvas is not None:
        width, height = canvas
    length = words.LENGTHS[draw.one(range(len(words.LENGTHS)))]
    drawn_count = 2 if draw.chance(1 / 3) else 1
    ground = draw.one(range(len(words.COLOURS)))
    scene = Scene(width, height, num_frames or length, ground, draw.shade(ground))
    count = num_objects or drawn_count
    for place in range(count):
        box = (place * width / count, 0.0, (place + 1) * width / count, float(height))
        scene.objects.append(_draw_object(draw, scene, box))
    return scene


def _draw_object(draw: Draw, scene: Scene, box: tuple[float, float, float, float]) -> SceneObject:
    others = scene.objects
    shape = draw.one([i for i in range(len(words.SHAPES)) if i not in [o.shape for o in others]])
    taken = [scene.ground, *(other.colour for other in others)]
    colour = draw.one(
        [
            index
            for index in range(len(words.OBJECT_COLOURS))
            if min(words.contrast(index, used) for used in taken) >= words.MIN_CONTRAST
        ]
    )
    is_alone = box[2] - box[0] >= scene.width
    size = draw.one(range(3 if is_alone else 2))
    motion = draw.one(range(len(words.MOTIONS)))
    thing = SceneObject(
        shape=shape,
        colour=colour,
        size=size,
        motion=motion,
        direction=draw.word(words.DIRECTIONS[motion]),
        speed=draw.word(words.SPEEDS),
        pitch_hz=words.PITCHES_HZ[shape],
        rgb=draw.shade(colour),
        r0=draw.between(*words.SIZE_RADII[size]) * scene.height / words.REFERENCE_HEIGHT,
    )
    _MOVES[motion](draw, thing, box, scene.seconds)
    return thing


Box = tuple[float, float, float, float]


def _inset(radius: float, box: Box) -> float:
    """How far the centre of an object stays from the border of its box."""
    return radius * _REACH + _edge(box)


def _edge(box: Box) -> float:
    return _EDGE * (box[3] - box[1]) / words.REFERENCE_HEIGHT


def _spot(draw: Draw, thing: SceneObject, box: Box, radius: float) -> None:
    """A place anywhere in the box."""
    inset = _inset(radius, box)
    thing.px = draw.between(box[0] + inset, box[2] - inset)
    thing.py = draw.between(box[1] + inset, box[3] - inset)


def _travel(draw: Draw, low: float, high: float, share: float) -> tuple[float, float]:
    """A way of `share` of a range, somewhere in it: its two ends in rising order."""
    way = (high - low) * share
    first = low + draw.between(0, high - low - way)
    return first, first + way


def _drift(draw: Draw, thing: SceneObject, box: Box, seconds: float) -> None:
    _spot(draw, thing, box, thing.r0)
    inset = _inset(thing.r0, box)
    share = draw.between(0.9, 1.0) if thing.speed == "fast" else draw.between(0.5, 0.6)
    sideways = thing.direction in ("left", "right")
    low, high = (box[0], box[2]) if sideways else (box[1], box[3])
    first, last = _travel(draw, low + inset, high - inset, share)
    if thing.direction in ("left", "up"):
        first, last = last, first
    if sideways:
        thing.px, thing.vx = first, (last - first) / seconds
    else:
        thing.py, thing.vy = first, (last - first) / seconds


def _bounce(draw: Draw, thing: SceneObject, box: Box, seconds: float) -> None:
    _spot(draw, thing, box, thing.r0)
    thing.py = box[3] - thing.r0 - _edge(box)
    thing.hop = (box[3] - box[1] - 2 * _inset(thing.r0, box)) * draw.between(0.6, 0.95)
    thing.period = draw.between(0.6, 0.75) if thing.speed == "fast" else draw.between(1.1, 1.3)
    thing.start = draw.between(0.2, 0.95) * thing.period
    if thing.direction != "in place":
        inset = _inset(thing.r0, box)
        first, last = _travel(draw, box[0] + inset, box[2] - inset, draw.between(0.6, 1.0))
        if thing.direction == "left":
            first, last = last, first
        thing.px, thing.vx = first, (last - first) / seconds


def _orbit(draw: Draw, thing: SceneObject, box: Box, seconds: float) -> None:
    room = min(box[2] - box[0], box[3] - box[1]) / 2 - _inset(thing.r0, box)
    thing.px, thing.py = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    thing.orbit = room * draw.between(0.75, 1.0)
    thing.angle = draw.between(0, 2 * math.pi)
    period = draw.between(1.8, 2.2) if thing.speed == "fast" else draw.between(3.4, 4.0)
    # y points down, so a rising angle turns clockwise.
    thing.omega = 2 * math.pi / period * (1 if thing.direction == "clockwise" else -1)


def _grow(draw: Draw, thing: SceneObject, box: Box, seconds: float) -> None:
    small, large = 0.6 * thing.r0, 1.35 * thing.r0
    _spot(draw, thing, box, large)
    first, last = (small, large) if thing.direction == "bigger" else (large, small)
    thing.r0, thing.growth = first, (last - first) / seconds


def _blink(draw: Draw, thing: SceneObject, box: Box, seconds: float) -> None:
    _spot(draw, thing, box, thing.r0)
    thing.period = draw.between(0.5, 0.65) if thing.speed == "fast" else draw.between(1.0, 1.3)
    thing.start = draw.between(0, 1) * thing.period
    thing.duty = _DUTY


_MOVES = (_drift, _bounce, _orbit, _grow, _blink)


@dataclass(slots=True)
class SceneTensors:
    """Scenes of one canvas as tensors, [B, K] or [B, K, n]; a missing second object is not present.

    Attributes:
        ground: RGB in [0, 1], [B, 3].
        rgb: [B, K, 3].
        shape: one-hot, [B, K, number of shapes].
        pitch_hz: [B, K].
        present: 1 or 0, [B, K].
        motion: in the order of `PARAMETERS`, [B, K, 13].
        first_s: time of the first rendered frame and sample, [B].
    """

    ground: Tensor
    rgb: Tensor
    shape: Tensor
    pitch_hz: Tensor
    present: Tensor
    motion: Tensor
    first_s: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """All of them by name."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def to(self, device: torch.device | str) -> "SceneTensors":
        """The same on another device, copied asynchronously from pinned memory if there is any."""
        moved = {n: t.to(device, non_blocking=True) for n, t in self.tensors().items()}
        return SceneTensors(**moved)

    def copy_(self, other: "SceneTensors") -> None:
        """Take over the values of another batch of the same shape, in place."""
        for name, tensor in self.tensors().items():
            tensor.copy_(getattr(other, name), non_blocking=True)


def to_tensors(scenes: Sequence[Scene], first_s: Sequence[float] | None = None) -> SceneTensors:
    """Scenes as fp32 tensors on the CPU; `first_s` moves the start of each."""
    count = len(scenes)
    table = {
        "ground": torch.tensor([scene.ground_rgb for scene in scenes]),
        "rgb": torch.zeros(count, MAX_OBJECTS, 3),
        "shape": torch.zeros(count, MAX_OBJECTS, len(words.SHAPES)),
        "pitch_hz": torch.full((count, MAX_OBJECTS), 100.0),
        "present": torch.zeros(count, MAX_OBJECTS),
        "motion": torch.ones(count, MAX_OBJECTS, len(PARAMETERS)),
        "first_s": torch.tensor([0.0] * count if first_s is None else list(first_s)),
    }
    for row, scene in enumerate(scenes):
        for place, thing in enumerate(scene.objects):
            table["rgb"][row, place] = torch.tensor(thing.rgb)
            table["shape"][row, place, thing.shape] = 1
            table["pitch_hz"][row, place] = thing.pitch_hz
            table["present"][row, place] = 1
            table["motion"][row, place] = torch.tensor([getattr(thing, p) for p in PARAMETERS])
    return SceneTensors(**table)
