"""Captions say what the scene does, and are read back as that."""

import pytest

from build_engines.train_tiny import vocabulary as words
from build_engines.train_tiny.captions import caption, parse_caption, unread_words
from build_engines.train_tiny.scenes import draw_scene


@pytest.mark.parametrize("plain", [True, False])
def test_a_caption_is_read_as_its_scene(plain: bool) -> None:
    stated = 0
    for index in range(300):
        scene = draw_scene(9, index)
        text = caption(scene, 9, index, plain=plain)
        request = parse_caption(text)
        assert unread_words(text) == [], text
        assert request.ground == words.COLOUR_NAMES[scene.ground]
        assert len(request.objects) == len(scene.objects), text
        for wish, thing in zip(request.objects, scene.objects, strict=True):
            assert (wish.colour, wish.shape) == (
                words.COLOUR_NAMES[thing.colour],
                words.SHAPES[thing.shape],
            )
            assert wish.motion == words.MOTIONS[thing.motion], text
            assert wish.size in (None, words.SIZES[thing.size])
            assert wish.speed in (None, thing.speed)
            assert wish.direction in (None, thing.direction), text
            stated += wish.direction is not None
            if plain:
                assert wish.direction == thing.direction
    assert stated > 300


def test_articles() -> None:
    texts = [caption(draw_scene(9, index), 9, index) for index in range(200)]
    assert any(" an orange " in text for text in texts)
    assert not any(" a orange" in text or " an red" in text for text in texts)


def test_the_demo_prompt() -> None:
    request = parse_caption("A red circle bounces on a blue ground")
    wish = request.objects[0]
    assert (wish.colour, wish.shape, wish.motion, request.ground) == (
        *("red", "circle", "bounce", "blue"),
    )
    assert (wish.size, wish.direction, wish.speed) == (None, None, None)


def test_a_prompt_without_a_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="legal: a colour"):
        parse_caption("a fox in the snow")


@pytest.mark.parametrize(
    ("text", "unread"),
    [
        ("a red circle drifts right on a blue ground", ["drifts", "right"]),
        ("not a red circle on a blue ground", ["not"]),
        ("a red circle bounces left", ["left"]),
        ("a shiny red circle spins leftward", ["shiny", "spins", "leftward"]),
        ("A red circle bounces quickly to the left, and a green star blinks", []),
        ("a red circle", []),
    ],
)
def test_words_that_say_nothing_are_found(text: str, unread: list[str]) -> None:
    assert unread_words(text) == unread
