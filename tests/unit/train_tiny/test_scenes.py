"""Scenes against their own rules, and their motion against a simulation step by step."""

import math

import numpy as np
import pytest
import torch

from build_engines.train_tiny import vocabulary as words
from build_engines.train_tiny.motion import motion_state
from build_engines.train_tiny.scenes import Scene, SceneObject, draw_scene, to_tensors

SCENES = [draw_scene(5, index) for index in range(200)]


def places(scene: Scene, times: np.ndarray):
    state = motion_state(to_tensors([scene]), torch.tensor(times, dtype=torch.float32)[None])
    return [value[0].numpy() for value in (state.x, state.y, state.radius, state.visible)]


def test_a_scene_depends_on_seed_and_index_alone() -> None:
    assert draw_scene(5, 3) == SCENES[3]
    assert draw_scene(6, 3) != SCENES[3]
    assert len({repr(scene) for scene in SCENES}) == len(SCENES)


def test_every_word_occurs() -> None:
    things = [thing for scene in SCENES for thing in scene.objects]
    assert {thing.shape for thing in things} == set(range(len(words.SHAPES)))
    assert {thing.size for thing in things} == set(range(len(words.SIZES)))
    expected = {
        (motion, direction)
        for motion, directions in enumerate(words.DIRECTIONS)
        for direction in directions
    }
    assert {(thing.motion, thing.direction) for thing in things} == expected
    assert {(scene.width, scene.height) for scene in SCENES} == set(words.CANVASES)
    assert {scene.num_frames for scene in SCENES} == set(words.LENGTHS)
    assert {len(scene.objects) for scene in SCENES} == {1, 2}


def test_objects_stay_in_their_half_and_differ() -> None:
    for scene in SCENES:
        x, y, radius, _ = places(scene, np.linspace(0, scene.seconds, 300))
        share = scene.width / len(scene.objects)
        for place in range(len(scene.objects)):
            assert (x[place] - radius[place] >= place * share).all()
            assert (x[place] + radius[place] <= (place + 1) * share).all()
            assert (y[place] - radius[place] >= 0).all()
            assert (y[place] + 1.06 * radius[place] <= scene.height).all()
        colours = [scene.ground, *(thing.colour for thing in scene.objects)]
        pairs = [(a, b) for i, a in enumerate(colours) for b in colours[:i]]
        assert min(words.contrast(*pair) for pair in pairs) >= words.MIN_CONTRAST
        assert len({thing.shape for thing in scene.objects}) == len(scene.objects)


def simulated_heights(thing: SceneObject, times: np.ndarray) -> np.ndarray:
    """A ball under gravity that the floor throws back, in steps of a tenth of a millisecond."""
    gravity = 8 * thing.hop / thing.period**2
    launch = gravity * thing.period / 2
    step = 1e-4
    since = (-thing.start) % thing.period
    height, speed = launch * since - gravity * since**2 / 2, launch - gravity * since
    heights = []
    for _ in range(int(times[-1] / step) + 2):
        heights.append(height)
        speed -= gravity * step
        height += speed * step
        if height < 0:
            height, speed = -height, abs(speed)
    return np.interp(times, np.arange(len(heights)) * step, heights)


def test_bounces_follow_gravity() -> None:
    scene = next(s for s in SCENES if s.objects[0].motion == words.BOUNCE)
    thing = scene.objects[0]
    times = np.linspace(0, 2.0, 400)
    _, y, _, _ = places(scene, times)
    assert np.abs(thing.py - y[0] - simulated_heights(thing, times)).max() < 0.02 * thing.hop + 0.5
    contacts = thing.bounce_times(scene.seconds)
    assert np.allclose(np.diff(contacts), thing.period)
    assert 0 <= contacts[0] < thing.period
    _, floor, _, _ = places(scene, np.array(contacts))
    assert np.allclose(floor[0], thing.py, atol=0.05)


@pytest.mark.parametrize("index", range(60))
def test_motions_go_where_they_say(index: int) -> None:
    scene = SCENES[index]
    x, y, radius, visible = places(scene, np.linspace(0, scene.seconds - 0.01, 500))
    for place, thing in enumerate(scene.objects):
        across, along = x[place][-1] - x[place][0], y[place][-1] - y[place][0]
        signs = {"left": -across, "right": across, "up": -along, "down": along}
        if thing.direction in signs:
            assert signs[thing.direction] > 5
        if thing.motion == words.ORBIT:
            middle_x, middle_y = thing.px, thing.py
            angles = np.unwrap(np.arctan2(y[place] - middle_y, x[place] - middle_x))
            turned = angles[-1] - angles[0]
            assert (turned > 0) == (thing.direction == "clockwise")
            assert abs(turned) > 2 * math.pi
        if thing.motion == words.GROW:
            ratio = radius[place][-1] / radius[place][0]
            assert ratio > 2 if thing.direction == "bigger" else ratio < 0.5
        if thing.motion == words.BLINK:
            assert 0.4 < visible[place].mean() < 0.7
        else:
            assert visible[place].all()


def test_a_canvas_higher_than_wide_is_refused() -> None:
    with pytest.raises(ValueError, match=r"canvas \(64, 128\) is not legal"):
        draw_scene(0, 0, canvas=(64, 128))
