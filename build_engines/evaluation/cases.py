"""The fixed held-out set: prompts with what they bring, and the truth behind them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from build_engines.evaluation.objects import Frames
from build_engines.evaluation.tones import Wave
from build_engines.train_tiny.batches import HELD_OUT_SEED
from build_engines.train_tiny.captions import caption
from build_engines.train_tiny.documents import (
    CLIP,
    KEYFRAME_TASKS,
    PICTURE,
    REFERENCE_TASKS,
    TEXT,
    VOICE,
    Format,
    Kind,
)
from build_engines.train_tiny.picture import render_frames
from build_engines.train_tiny.references import CLIP as CLIP_REFERENCE
from build_engines.train_tiny.references import PICTURE as PICTURE_REFERENCE
from build_engines.train_tiny.references import (
    PICTURE_AND_TONE,
    draw_reference,
    reference_frames,
    reference_sound,
)
from build_engines.train_tiny.scenes import Scene, draw_scene, to_tensors

PROMPTS, CONDITIONED = 100, 8
FRAMES = 124
_FIRST_INDEX = 10_000  # held-out losses, which chose the weights, use the scenes before
_SEED = 1234
_REFERENCES = {PICTURE: PICTURE_REFERENCE, VOICE: PICTURE_AND_TONE, CLIP: CLIP_REFERENCE}


@dataclass(slots=True)
class Medium:
    """Prepared pixels and samples of one condition.

    Attributes:
        frames: uint8 [F, H, W, 3], or None for a sound.
        wave: fp32 [2, samples], or None without sound.
    """

    frames: Frames | None
    wave: Wave | None = None


@dataclass(slots=True)
class Case:
    """One prompt.

    Attributes:
        name: `text 3`.
        kind: task and size.
        prompt: what is asked for.
        seed: of the noise.
        scene: the truth that the prompt describes.
        media: of the kind's conditions, in order.
        place: the object that a reference fixes.
    """

    name: str
    kind: Kind
    prompt: str
    seed: int
    scene: Scene
    media: Sequence[Medium] = ()
    place: int = 0

    @property
    def task(self) -> str:
        """`text`, `first`, ..., `clip`."""
        return self.kind.task


def held_out_cases(
    prompts: int = PROMPTS,
    conditioned: int = CONDITIONED,
    *,
    references: bool = True,
    sizes: Sequence[Format] | None = None,
) -> Iterator[Case]:
    """The set, made case by case.

    Args:
        prompts: number of cases without conditions.
        conditioned: number of cases of each other task.
        references: whether reference tasks are asked for.
        sizes: of the clips, in turn; by default three in four are square.
    """
    square, wide = Format(128, 128, FRAMES), Format(192, 128, FRAMES)
    cycle = sizes or (square, square, square, wide)
    tasks = [task for task in KEYFRAME_TASKS if task != TEXT]
    counts = dict.fromkeys([TEXT], prompts) | dict.fromkeys(tasks, conditioned)
    if references:
        counts |= dict.fromkeys(REFERENCE_TASKS, conditioned)
    for task, count in counts.items():
        for number in range(count):
            kind = Kind(task, cycle[number % len(cycle)])
            yield _reference(kind, number) if task in REFERENCE_TASKS else _keyframe(kind, number)


def _keyframe(kind: Kind, number: int) -> Case:
    form, index = kind.format, _FIRST_INDEX + number
    scene = draw_scene(
        HELD_OUT_SEED, index, canvas=(form.width, form.height), num_frames=form.num_frames
    )
    prompt = caption(scene, HELD_OUT_SEED, index, plain=number % 2 == 0)
    media = []
    if kind.conditions:
        rendered = _bytes(
            render_frames(to_tensors([scene]), form.width, form.height, form.num_frames)[0]
        )
        media = [Medium(rendered[[each.frame_index]]) for each in kind.conditions]
    return Case(f"{kind.task} {number}", kind, prompt, _SEED + number, scene, media)


def _reference(kind: Kind, number: int) -> Case:
    form, index = kind.format, _FIRST_INDEX + number
    drawn = draw_reference(
        HELD_OUT_SEED, index, _REFERENCES[kind.task], (form.width, form.height), form.num_frames
    )
    picture = _bytes(reference_frames(drawn))
    if kind.task == CLIP:
        media = [Medium(picture, reference_sound(drawn).numpy())]
    else:
        media = [Medium(picture)]
    if kind.task == VOICE:
        media.append(Medium(None, reference_sound(drawn).numpy()))
    name = f"{kind.task} {number}"
    return Case(name, kind, drawn.prompt, _SEED + number, drawn.target, media, drawn.place)


def _bytes(frames: Tensor) -> NDArray[np.uint8]:
    """[3, F, H, W] in [0, 1] to [F, H, W, 3]."""
    levels = (frames.permute(1, 2, 3, 0) * 255).round().byte().numpy()
    return np.ascontiguousarray(levels)
