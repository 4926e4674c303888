"""Batches of training scenes, and the numbers of held-out ones."""

from build_engines.train_tiny.references import PITCH_RANGE_HZ
from build_engines.train_tiny.scenes import Draw, Scene, SceneTensors, draw_scene, to_tensors

HELD_OUT_SEED = 7  # no training draws from it
_TRAINING_SEED = 1000  # plus the seed of the piece
_FREE_PITCHES = 0.3  # share of scenes whose pitches are anything, as reference tones have


def training_batch(
    seed: int, step: int, count: int, canvas: tuple[int, int], window_s: float
) -> SceneTensors:
    """Scenes that no other step sees, each from a random moment on.

    Args:
        seed: of the piece.
        step: of the piece.
        count: scenes.
        canvas: width and height in pixels.
        window_s: length of the excerpt, which stays inside the scene.
    """
    scenes, first_s = [], []
    for index in range(step * count, (step + 1) * count):
        scene = draw_scene(_TRAINING_SEED + seed, index, canvas=canvas)
        draw = Draw(_TRAINING_SEED + seed, index + 3_000_017)
        if draw.chance(_FREE_PITCHES):
            _free_pitches(draw, scene)
        scenes.append(scene)
        first_s.append(draw.between(0, max(0.0, scene.seconds - window_s)))
    return to_tensors(scenes, first_s)


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
