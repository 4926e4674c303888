import pytest
import torch
from diffusers import MiniMaxH3Scheduler
from diffusers.utils.torch_utils import randn_tensor

from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.schedules.noise import draw_noise, noise_condition

SHAPE = (7, 4, 6)
AUDIO = 9


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_single_stream_draws_in_the_reference_order() -> None:
    conditions = [(1, 4, 6), (1, 4, 6), (3, 8, 4)]
    stream = generator(7)
    expected = [
        randn_tensor((1, 24, *shape), generator=stream, dtype=torch.float32)
        for shape in (*conditions, SHAPE)
    ]
    audio = randn_tensor((2 * AUDIO, 32), generator=stream, dtype=torch.float32)
    noise = draw_noise("single_stream", 7, SHAPE, AUDIO, conditions)
    for drawn, reference in zip((*noise.conditions, noise.video), expected, strict=True):
        assert torch.equal(drawn, reference[0])
    assert torch.equal(noise.audio_rows, audio)


def test_per_stream_audio_is_a_prefix_of_the_video() -> None:
    noise = draw_noise("per_stream", 42, SHAPE, AUDIO)
    flat = noise.audio_rows.flatten()
    assert torch.equal(flat, noise.video.flatten()[: flat.numel()])
    assert noise.video.shape == (24, *SHAPE)
    assert noise.audio_rows.shape == (2 * AUDIO, 32)
    assert noise.conditions == ()


def test_recipes_agree_on_video_and_not_on_audio_without_conditions() -> None:
    streams, single = (draw_noise(r, 3, SHAPE, AUDIO) for r in ("per_stream", "single_stream"))
    assert torch.equal(streams.video, single.video)
    assert not torch.equal(streams.audio_rows, single.audio_rows)


def test_conditions_move_nothing_else_in_per_stream() -> None:
    alone = draw_noise("per_stream", 3, SHAPE, AUDIO)
    noise = draw_noise("per_stream", 3, SHAPE, AUDIO, [(1, 4, 6)])
    assert torch.equal(noise.video, alone.video)
    assert torch.equal(noise.audio_rows, alone.audio_rows)


def test_conditions_move_every_later_draw_in_single_stream() -> None:
    alone = draw_noise("single_stream", 3, SHAPE, AUDIO)
    noise = draw_noise("single_stream", 3, SHAPE, AUDIO, [(1, 4, 6)])
    assert not torch.equal(noise.video, alone.video)


def test_per_stream_condition_is_the_head_of_a_longer_draw() -> None:
    one, two = [(1, 4, 6)], [(1, 4, 6), (1, 4, 6)]
    whole = torch.randn(1, 24, SHAPE[0] + 2, 4, 6, generator=generator(5))
    first, second = draw_noise("per_stream", 5, SHAPE, AUDIO, two).conditions
    assert torch.equal(first, whole[0, :, :1])
    assert torch.equal(first, second)
    # The number of conditions is part of the draw.
    assert not torch.equal(first, draw_noise("per_stream", 5, SHAPE, AUDIO, one).conditions[0])


def test_per_stream_condition_may_be_longer_than_the_target() -> None:
    (drawn,) = draw_noise("per_stream", 5, SHAPE, AUDIO, [(12, 4, 6)]).conditions
    assert torch.equal(drawn, torch.randn(1, 24, 12, 4, 6, generator=generator(5))[0])


@pytest.mark.parametrize("recipe", ["per_stream", "single_stream"])
def test_a_seed_means_the_same_noise_each_time(recipe: str) -> None:
    torch.manual_seed(99)
    first = draw_noise(recipe, 2**63 - 1, SHAPE, AUDIO)
    torch.manual_seed(1)
    again = draw_noise(recipe, 2**63 - 1, SHAPE, AUDIO)
    other = draw_noise(recipe, 0, SHAPE, AUDIO)
    assert torch.equal(first.video, again.video)
    assert torch.equal(first.audio_rows, again.audio_rows)
    assert not torch.equal(first.video, other.video)
    assert first.video.dtype == first.audio_rows.dtype == torch.float32


def test_condition_level_is_bitwise_the_reference() -> None:
    clean, noise = torch.randn(1, 24, 1, 4, 6), torch.randn(1, 24, 1, 4, 6)
    expected = MiniMaxH3Scheduler().scale_noise(clean, 0.999, noise)
    mixed = noise_condition(clean, noise)
    assert torch.equal(mixed, expected)
    assert not torch.equal(mixed, clean)


def test_unknown_recipe_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"noise_recipe: 'gpu'.*per_stream"):
        draw_noise("gpu", 0, SHAPE, AUDIO)
