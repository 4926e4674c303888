"""All measurements of one clip together, and their comparison with what a caption asked for."""

import itertools
from dataclasses import asdict, dataclass, field

import numpy as np

from build_engines.evaluation.movement import classify
from build_engines.evaluation.objects import Array, Frames, Track, find_objects
from build_engines.evaluation.shapes import fit_shape, size_word
from build_engines.evaluation.tones import Tone, Wave, find_clicks, find_tones, semitones
from build_engines.train_tiny import vocabulary as words
from build_engines.train_tiny.captions import Request, Wish

_MIN_PATH = 0.08  # of the width; on a shorter path a correlation says nothing


@dataclass(slots=True)
class ObjectFacts:
    """One object as it is seen and heard.

    Attributes:
        colour: its name.
        shape: its name.
        radius: median, in pixels.
        size: the word for the radius.
        motion: `still` or one of the vocabulary's.
        direction: of the motion.
        x: median place, in widths of the canvas.
        pitch_hz: of its tone; None if none is heard.
        level: amplitude of the tone.
        pan_correlation: of the tone's pan with the place; None on a path too short for one.
        pan_error: mean distance of pan and place, in widths of the canvas.
        bounces: times in seconds.
        click_offsets: seconds from each bounce to the nearest click; None where there is no click.
    """

    colour: str
    shape: str
    radius: float
    size: str
    motion: str
    direction: str
    x: float
    pitch_hz: float | None = None
    level: float | None = None
    pan_correlation: float | None = None
    pan_error: float | None = None
    bounces: list[float] = field(default_factory=list)
    click_offsets: list[float | None] = field(default_factory=list)


@dataclass(slots=True)
class ClipFacts:
    """A clip: its ground, its objects from left to right, the times of its clicks in seconds."""

    ground: str
    objects: list[ObjectFacts]
    clicks: list[float]

    def as_json(self) -> dict[str, object]:
        """Plain values for a report."""
        return asdict(self)


def measure_clip(frames: Frames, wave: Wave | None) -> ClipFacts:
    """Measure a clip.

    Args:
        frames: RGB [F, H, W, 3].
        wave: fp32 [2, samples] at 32 kHz; None measures the picture alone.
    """
    ground, tracks = find_objects(frames)
    clicks = [] if wave is None else find_clicks(wave)
    facts = [_seen(track, clicks) for track in tracks]
    if wave is not None and tracks:
        tones = find_tones(wave, len(frames), len(tracks))
        for index, tone in _matched(tracks, tones):
            _add_tone(facts[index], tracks[index], tone)
    return ClipFacts(ground, facts, clicks)


def _seen(track: Track, clicks: list[float]) -> ObjectFacts:
    shape, radius = fit_shape(track)
    movement = classify(track)
    height, width = track.cover.shape[1:]
    return ObjectFacts(
        colour=track.colour,
        shape=shape,
        radius=radius,
        size=size_word(radius, height),
        motion=movement.motion,
        direction=movement.direction,
        x=float(np.nanmedian(track.x)) / width,
        bounces=list(movement.bounces),
        click_offsets=[
            min((click - bounce for click in clicks), key=abs, default=None)
            for bounce in movement.bounces
        ],
    )


def _matched(tracks: list[Track], tones: list[Tone]) -> list[tuple[int, Tone]]:
    """Tones with the objects whose place they share best."""
    errors = [[_pan_error(track, tone) for tone in tones] for track in tracks]
    pairings = itertools.permutations(range(len(tracks)), len(tones))
    best = min(pairings, key=lambda places: sum(errors[place][i] for i, place in enumerate(places)))
    return list(zip(best, tones, strict=True))


def _places(track: Track, tone: Tone) -> tuple[Array, Array]:
    """Place and pan, both 0 to 1, in the frames that have both."""
    place = track.x / track.cover.shape[2]
    both = np.isfinite(place) & np.isfinite(tone.pan)
    return place[both], tone.pan[both].astype(np.float32)


def _pan_error(track: Track, tone: Tone) -> float:
    place, pan = _places(track, tone)
    return float(np.abs(place - pan).mean()) if len(place) else 1.0


def _add_tone(facts: ObjectFacts, track: Track, tone: Tone) -> None:
    place, pan = _places(track, tone)
    facts.pitch_hz, facts.level = tone.pitch_hz, tone.level
    if not len(place):
        return
    facts.pan_error = float(np.abs(place - pan).mean())
    if place.max() - place.min() >= _MIN_PATH and pan.std() > 0:
        facts.pan_correlation = float(np.corrcoef(place, pan)[0, 1])


def judge(facts: ClipFacts, request: Request) -> dict[str, bool]:
    """Whether a clip is what a caption asked for.

    Returns:
        A verdict for each property that the caption states; `objects` is their number, and without
        all of them everything about objects is wrong.
    """
    verdicts = {"objects": len(facts.objects) == len(request.objects)}
    if request.ground is not None:
        verdicts["ground"] = facts.ground == request.ground
    found = facts.objects if verdicts["objects"] else [None] * len(request.objects)
    pairs = list(zip(found, request.objects, strict=True))
    for name, is_right in _PROPERTIES.items():
        answers = [is_right(seen, wish) for seen, wish in pairs]
        stated = [answer for answer in answers if answer is not None]
        if stated:
            verdicts[name] = all(stated)
    return verdicts


def reference_look(facts: ClipFacts, picture: Frames) -> dict[str, bool]:
    """Whether an object of a clip looks like the one in a picture.

    Args:
        facts: of the clip.
        picture: RGB [H, W, 3], of the clip's size.

    Returns:
        `colour`, `shape` and `size` (the radius within a fifth): whether the object of the clip
        that is most like the picture's has them; all false if either shows no object.
    """
    shown = measure_clip(picture[None], None).objects
    looks = [_look(seen, shown[0]) for seen in facts.objects] if shown else []
    nothing = dict.fromkeys(("colour", "shape", "size"), False)
    return max(looks, key=lambda look: sum(look.values()), default=nothing)


def _look(seen: ObjectFacts, wanted: ObjectFacts) -> dict[str, bool]:
    return {
        "colour": seen.colour == wanted.colour,
        "shape": seen.shape == wanted.shape,
        "size": bool(abs(np.log(seen.radius / wanted.radius)) < np.log(1.2)),
    }


def _stated(name: str, seen: ObjectFacts | None, wish: Wish) -> bool | None:
    asked = getattr(wish, name)
    if asked is None:
        return None
    return seen is not None and getattr(seen, name) == asked


def _pitch(seen: ObjectFacts | None, wish: Wish) -> bool:
    expected = words.PITCHES_HZ[words.SHAPES.index(wish.shape)]
    if seen is None or seen.pitch_hz is None:
        return False
    return abs(semitones(seen.pitch_hz, expected)) <= 1


_PROPERTIES = {
    "shape": lambda seen, wish: _stated("shape", seen, wish),
    "colour": lambda seen, wish: _stated("colour", seen, wish),
    "size": lambda seen, wish: _stated("size", seen, wish),
    "motion": lambda seen, wish: _stated("motion", seen, wish),
    "direction": lambda seen, wish: _stated("direction", seen, wish),
    "pitch": _pitch,
}
