"""Captions of scenes, and what a caption asks for."""

import re
from dataclasses import dataclass

from build_engines.train_tiny import vocabulary as words
from build_engines.train_tiny.scenes import Draw, Scene, SceneObject

_GROUNDS = ("on {} ground", "over {} background")
_ADVERBS = {"slow": "slowly", "fast": "quickly"}
# How a motion and its direction are said; the first form of each is the plain one.
_PHRASES: dict[tuple[str, str], tuple[str, ...]] = {
    ("drift", "left"): ("drifts {}to the left", "moves {}to the left"),
    ("drift", "right"): ("drifts {}to the right", "moves {}to the right"),
    ("drift", "up"): ("drifts {}upwards", "moves {}upwards"),
    ("drift", "down"): ("drifts {}downwards", "moves {}downwards"),
    ("bounce", "in place"): ("bounces {}in place", "bounces {}up and down"),
    ("bounce", "left"): ("bounces {}to the left",),
    ("bounce", "right"): ("bounces {}to the right",),
    ("orbit", "clockwise"): ("orbits {}clockwise", "circles {}clockwise"),
    ("orbit", "counterclockwise"): ("orbits {}counterclockwise", "circles {}counterclockwise"),
    ("grow", "bigger"): ("grows", "gets bigger"),
    ("grow", "smaller"): ("shrinks", "gets smaller"),
    ("blink", "on and off"): ("blinks {}", "flashes {}on and off"),
}
_MOTION_WORDS = (
    ("bounce", r"bounc"),
    ("orbit", r"orbit|clockwise|circles"),
    ("blink", r"blink|flash"),
    ("grow", r"\bgrow|shrink|bigger|smaller"),
    ("drift", r"drift|\bmoves"),
)
_DIRECTION_WORDS = (
    ("counterclockwise", r"counterclockwise"),
    ("clockwise", r"clockwise"),
    ("left", r"to the left"),
    ("right", r"to the right"),
    ("up", r"upwards"),
    ("down", r"downwards"),
    ("in place", r"in place|up and down"),
    ("bigger", r"grow|bigger"),
    ("smaller", r"shrink|smaller"),
    ("on and off", r"blink|flash"),
)


def caption(scene: Scene, seed: int = 0, index: int = 0, *, plain: bool = False) -> str:
    """Describe a scene.

    Args:
        scene: what to describe; its objects are named from left to right.
        seed: of the choice of words.
        index: of the scene in its set.
        plain: say size, motion, direction and speed of everything in the plainest words. Otherwise
            some of these are left out, as people do.
    """
    draw = Draw(seed, index + 1_000_003)
    said = [f"{_name(t, draw, plain)} {_does(t, draw, plain)}" for t in scene.objects]
    ground = _GROUNDS[0] if plain else draw.word(_GROUNDS)
    colour = _with_article([words.COLOUR_NAMES[scene.ground]])
    return f"{' and '.join(said)} {ground.format(colour)}"


def _name(thing: SceneObject, draw: Draw, plain: bool) -> str:
    names = [words.COLOUR_NAMES[thing.colour], words.SHAPES[thing.shape]]
    # A medium object needs no word, and what grows has no size of its own.
    if thing.motion != words.GROW and thing.size != 1 and (plain or draw.chance(0.8)):
        names.insert(0, words.SIZES[thing.size])
    return _with_article(names)


def _with_article(names: list[str]) -> str:
    return " ".join(["an" if names[0][0] in "aeiou" else "a", *names])


def _does(thing: SceneObject, draw: Draw, plain: bool) -> str:
    forms = _PHRASES[words.MOTIONS[thing.motion], thing.direction]
    form = forms[0] if plain else draw.word(forms)
    if thing.motion == words.BOUNCE and not plain and draw.chance(0.4):
        form = "bounces {}"
    adverb = f"{_ADVERBS[thing.speed]} " if plain or draw.chance(0.6) else ""
    return form.format(adverb).strip()


@dataclass(frozen=True, slots=True)
class Wish:
    """What a caption asks of one object; None where it leaves the choice."""

    colour: str
    shape: str
    size: str | None
    motion: str | None
    direction: str | None
    speed: str | None


@dataclass(frozen=True, slots=True)
class Request:
    """What a caption asks for: objects from left to right, and the ground."""

    objects: tuple[Wish, ...]
    ground: str | None


_OBJECT = re.compile(
    rf"(?:({'|'.join(words.SIZES)}) )?({'|'.join(words.COLOUR_NAMES)}) ({'|'.join(words.SHAPES)})\b"
)
_GROUND = re.compile(rf"({'|'.join(words.COLOUR_NAMES)}) (?:ground|background)")


def parse_caption(text: str) -> Request:
    """Read a caption of this vocabulary.

    Raises:
        ValueError: it names no coloured shape.
    """
    text = text.lower()
    found = list(_OBJECT.finditer(text))
    if not found:
        raise ValueError(
            f"caption {text!r} is not legal; legal: a colour ({', '.join(words.COLOUR_NAMES)}) and "
            f"a shape ({', '.join(words.SHAPES)}), such as 'a red circle bounces on a blue ground'"
        )
    ends = [match.start() for match in found[1:]] + [len(text)]
    wishes = []
    for match, end in zip(found, ends, strict=True):
        rest = text[match.end() : end]
        motion = _first(_MOTION_WORDS, rest)
        direction = _first(_DIRECTION_WORDS, rest) if motion else None
        speed = next((name for name, word in _ADVERBS.items() if word in rest), None)
        wishes.append(Wish(match[2], match[3], match[1], motion, direction, speed))
    ground = _GROUND.search(text)
    return Request(tuple(wishes), ground[1] if ground else None)


def says_bounce(text: str) -> bool:
    """Whether a caption or a prompt tells of a bounce; all of them name what objects do."""
    return re.search(dict(_MOTION_WORDS)["bounce"], text) is not None


_SPEED = f"(?:(?:{'|'.join(_ADVERBS.values())}) )?"
_BARE = rf"(?:bounces|blinks)(?: (?:{'|'.join(_ADVERBS.values())}))?"
_FORMS = (form for forms in _PHRASES.values() for form in forms if not form.endswith("{}"))
_SAID = (form.format(_SPEED) for form in _FORMS)
# The bare forms come last, or it would leave "to the left" behind.
_DEEDS = re.compile(rf"\b(?:{'|'.join([*_SAID, _BARE])})(?!\w)")
_FILLERS = frozenset({"a", "an", "and", "on", "over"})


def unread_words(text: str) -> list[str]:
    """Words of a caption that `parse_caption` makes nothing of, in their order."""
    rest = text.lower()
    for pattern in (_OBJECT, _GROUND, _DEEDS):
        rest = pattern.sub(" ", rest)
    return [word for word in re.findall(r"[\w']+", rest) if word not in _FILLERS]


def _first(table: tuple[tuple[str, str], ...], text: str) -> str | None:
    return next((name for name, pattern in table if re.search(pattern, text)), None)
