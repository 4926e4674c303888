"""Batches of training scenes, and the numbers of held-out ones."""

from itertools import count as count_from

from build_engines.train_tiny.references import PITCH_RANGE_HZ
from build_engines.train_tiny.scenes import Draw, Scene, SceneTensors, draw_scene, to_tensors

HELD_OUT_SEED = 7  # no training draws from it
_TRAINING_SEED = 1000  # plus the seed of the piece
_FIRST_BOUNCE = 1_000_000_000  # bouncing scenes are numbered from here on
_TRIES = 256  # numbers for one of them; one scene in four bounces
_FREE_PITCHES = 0.3  # share of scenes whose pitches are anything, as reference tones have


def training_batch(
    seed: int,
    step: int,
    count: int,
    canvas: tuple[int, int],
    window_s: float,
    *,
    with_bounce: int = 0,
) -> SceneTensors:
    """Scenes that no other step sees, each from a random moment on.

    Args:
        seed: of the piece.
        step: of the piece.
        count: scenes.
        canvas: width and height in pixels.
        window_s: length of the excerpt, which stays inside the scene.
        with_bounce: how many of them, the first ones, are excerpts with a bounce.
    """
    scenes, first_s = [], []
    for place, index in enumerate(range(step * count, (step + 1) * count)):
        draw = Draw(_TRAINING_SEED + seed, index + 3_000_017)
        if place < with_bounce:
            scene = _bouncing_scene(_TRAINING_SEED + seed, index, canvas)
        else:
            scene = draw_scene(_TRAINING_SEED + seed, index, canvas=canvas)
        if draw.chance(_FREE_PITCHES):
            _free_pitches(draw, scene)
        latest = max(0.0, scene.seconds - window_s)
        first = draw.between(0, latest)
        if place < with_bounce:
            bounces = scene.bounce_times(scene.seconds)
            chosen = bounces[draw.one(range(len(bounces)))]
            first = min(max(0.0, chosen - draw.between(0, window_s)), latest)
        scenes.append(scene)
        first_s.append(first)
    return to_tensors(scenes, first_s)


def _bouncing_scene(seed: int, index: int, canvas: tuple[int, int]) -> Scene:
    numbers = count_from(_FIRST_BOUNCE + index * _TRIES)
    drawn = (draw_scene(seed, number, canvas=canvas) for number in numbers)
    return next(scene for scene in drawn if scene.bounce_times(scene.seconds))


def held_out_scenes(count: int, canvas: tuple[int, int], num_frames: int) -> list[Scene]:
    """The first scenes of the held-out set on a canvas."""
    return [
        draw_scene(HELD_OUT_SEED, index, canvas=canvas, num_frames=num_frames)
        for index in range(count)
    ]


def _free_pitches(draw: Draw, scene: Scene) -> None:
    low, high = PITCH_RANGE_HZ
    for thing in scene.objects:
        thing.pitch_hz = float(low * (high / low) ** draw.between(0, 1))
