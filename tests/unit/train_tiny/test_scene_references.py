"""References agree with the targets that are made after them."""

import numpy as np
import pytest
import torch

from build_engines.train_tiny.captions import parse_caption
from build_engines.train_tiny.picture import render_frames
from build_engines.train_tiny.references import (
    CLIP,
    CLIP_FRAMES,
    PICTURE,
    TONE,
    draw_reference,
    reference_frames,
    reference_sound,
)
from build_engines.train_tiny.scenes import draw_scene, to_tensors

CANVAS = (64, 64)


@pytest.mark.parametrize("index", range(6))
def test_a_clip_goes_on_in_its_target(index: int) -> None:
    reference = draw_reference(4, index, CLIP, CANVAS, 22)
    scene = draw_scene(4, index, canvas=CANVAS, num_frames=22 + CLIP_FRAMES)
    whole = render_frames(to_tensors([scene]), *CANVAS, CLIP_FRAMES + 22)[0]
    assert torch.equal(reference_frames(reference), whole[:, :CLIP_FRAMES])
    target = render_frames(to_tensors([reference.target]), *CANVAS, 22)[0]
    assert torch.allclose(target, whole[:, CLIP_FRAMES:], atol=2e-3)
    samples = round(CLIP_FRAMES / 24 * 32_000)
    assert reference_sound(reference).shape == (2, samples)


@pytest.mark.parametrize("index", range(6))
def test_a_picture_has_the_look_that_the_prompt_leaves_out(index: int) -> None:
    reference = draw_reference(4, index, PICTURE, CANVAS, 22)
    assert "object of picture 1" in reference.prompt
    thing = reference.target.objects[reference.place]
    picture = reference_frames(reference)
    assert picture.shape == (3, 1, 64, 64)
    assert torch.allclose(picture[:, 0, 32, 32], torch.tensor(thing.rgb), atol=1e-6)
    with pytest.raises(ValueError, match="no sound"):
        reference_sound(reference)


def test_a_tone_has_the_pitch_of_its_target() -> None:
    pitches = set()
    for index in range(5):
        reference = draw_reference(4, index, TONE, CANVAS, 22)
        assert "that sounds like audio 1" in reference.prompt
        assert parse_caption(reference.prompt).objects
        wave = reference_sound(reference)[0].double().numpy()
        spectrum = np.abs(np.fft.rfft(wave * np.hanning(len(wave))))
        found = spectrum.argmax() * 32_000 / len(wave)
        pitch = reference.target.objects[reference.place].pitch_hz
        assert found == pytest.approx(pitch, abs=0.5)
        pitches.add(pitch)
        with pytest.raises(ValueError, match="no frames"):
            reference_frames(reference)
    assert len(pitches) == 5


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="kind 'smell' is not legal; legal: picture, tone, clip"):
        draw_reference(0, 0, "smell", CANVAS, 22)
