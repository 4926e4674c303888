"""References for ref2va: an object's look as a picture, a pitch as a tone, a clip to go on from."""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from build_engines.train_tiny import vocabulary as words
from build_engines.train_tiny.captions import caption
from build_engines.train_tiny.picture import render_frames
from build_engines.train_tiny.scenes import Draw, Scene, SceneObject, draw_scene, to_tensors
from build_engines.train_tiny.sound import render_sound, tone
from minimax_h3.core.constants import AUDIO_SAMPLE_RATE_HZ, VIDEO_FPS

PICTURE, TONE, CLIP, PICTURE_AND_TONE = "picture", "tone", "clip", "picture and tone"
KINDS = (PICTURE, TONE, CLIP, PICTURE_AND_TONE)
PITCH_RANGE_HZ = (196.0, 784.0)
TONE_SAMPLES = 76_800  # 2.4 s
CLIP_FRAMES = 56  # 17 n + 5


@dataclass(slots=True)
class Reference:
    """A reference and what it asks for.

    Attributes:
        kind: one of `KINDS`.
        prompt: what to make of it.
        target: the scene that answers the prompt.
        place: the object that the reference fixes.
        source: a scene that shows or plays the reference; None for a tone.
    """

    kind: str
    prompt: str
    target: Scene
    place: int
    source: Scene | None


def draw_reference(
    seed: int, index: int, kind: str, canvas: tuple[int, int], num_frames: int
) -> Reference:
    """Draw a scene that depends on a reference.

    A picture stands for colour and shape, a tone for the pitch, both together for both; the target
    of a clip is what follows it.

    Raises:
        ValueError: an unknown kind.
    """
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r} is not legal; legal: {', '.join(KINDS)}")
    whole = num_frames + CLIP_FRAMES if kind == CLIP else num_frames
    scene = draw_scene(seed, index, canvas=canvas, num_frames=whole)
    draw = Draw(seed, index + 2_000_003)
    place = draw.one(range(len(scene.objects)))
    text = caption(scene, seed, index)
    thing = scene.objects[place]
    look = f"{words.COLOUR_NAMES[thing.colour]} {words.SHAPES[thing.shape]}"
    if kind == PICTURE:
        prompt = text.replace(look, "object of picture 1")
        return Reference(kind, prompt, scene, place, _portrait(draw, thing, canvas))
    if kind in (TONE, PICTURE_AND_TONE):
        low, high = PITCH_RANGE_HZ
        thing.pitch_hz = float(low * (high / low) ** draw.between(0, 1))
        shown = look if kind == TONE else "object of picture 1"
        prompt = text.replace(look, f"{shown} that sounds like audio 1")
        portrait = None if kind == TONE else _portrait(draw, thing, canvas)
        return Reference(kind, prompt, scene, place, portrait)
    source = dataclasses.replace(scene, num_frames=CLIP_FRAMES)
    return Reference(kind, f"video 1 goes on: {text}", _later(scene, num_frames), place, source)


def _portrait(draw: Draw, thing: SceneObject, canvas: tuple[int, int]) -> Scene:
    """The object alone and still, of its own size, on a ground that shows it."""
    grounds = [
        index
        for index in range(len(words.COLOURS))
        if words.contrast(index, thing.colour) >= words.MIN_CONTRAST
    ]
    ground = draw.one(grounds)
    radius = thing.r0 + thing.growth  # one second in, for what grows
    still = SceneObject(
        thing.shape, thing.colour, thing.size, thing.motion, thing.direction, thing.speed,
        thing.pitch_hz, thing.rgb, px=canvas[0] / 2, py=canvas[1] / 2, r0=radius,
    )  # fmt: skip
    return Scene(*canvas, 1, ground, draw.shade(ground), [still])


def _later(scene: Scene, num_frames: int) -> Scene:
    """The scene with its clock set forward by the length of the reference clip."""
    shift = CLIP_FRAMES / VIDEO_FPS
    things = [
        dataclasses.replace(
            thing,
            px=thing.px + thing.vx * shift,
            py=thing.py + thing.vy * shift,
            r0=thing.r0 + thing.growth * shift,
            angle=thing.angle + thing.omega * shift,
            start=thing.start - shift,
        )
        for thing in scene.objects
    ]
    return dataclasses.replace(scene, num_frames=num_frames, objects=things)


def reference_frames(reference: Reference) -> Tensor:
    """Frames of a picture (one) or clip, fp32 RGB in [0, 1], [3, T, H, W].

    Raises:
        ValueError: a tone, which has no picture.
    """
    source = reference.source
    if source is None:
        raise ValueError("a tone has no frames")
    return render_frames(to_tensors([source]), source.width, source.height, source.num_frames)[0]


def reference_sound(reference: Reference) -> Tensor:
    """Sound of a tone (2.4 s, both channels alike) or clip, fp32 [2, samples].

    Raises:
        ValueError: a picture, which has no sound.
    """
    if reference.kind == PICTURE:
        raise ValueError("a picture has no sound")
    source = reference.source
    if reference.kind == CLIP and source is not None:
        samples = round(source.seconds * AUDIO_SAMPLE_RATE_HZ)
        return render_sound(to_tensors([source]), source.width, source.height, samples)[0]
    times = torch.arange(TONE_SAMPLES) / AUDIO_SAMPLE_RATE_HZ
    pitch = torch.tensor(reference.target.objects[reference.place].pitch_hz)
    ends = (torch.minimum(times, times.flip(0)) / 0.01).clamp(0, 1)
    return (words.TONE_LEVEL / 2**0.5 * ends * tone(pitch, times)).expand(2, -1)
