"""Properties of the canvas rule, and of what a refused canvas tells."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimax_h3.core.canvas import (
    MAX_SIDE,
    RELEASED,
    canvas_from_ratio,
    canvas_from_size,
    check_canvas,
)
from minimax_h3.core.errors import InvalidRequestError

SIDES = st.integers(1, 10_000)
ROUNDING = 16  # pixels, half of a multiple


@given(SIDES, st.floats(0.25, 4.0))
def test_a_canvas_keeps_the_shape_within_the_rounding_of_its_sides(height: int, ratio: float):
    width = height * ratio
    if not 0.25 <= width / height <= 4:
        return
    made = canvas_from_size(width, height)
    short = RELEASED.short_edge if ratio >= 1 else RELEASED.short_edge / ratio
    exact_height = min(short, (RELEASED.max_area / ratio) ** 0.5)
    assert all(side % 32 == 0 for side in made)
    assert abs(made[1] - exact_height) <= ROUNDING + 1e-6
    assert abs(made[0] - exact_height * width / height) <= ROUNDING + 1e-6
    check_canvas(*made)  # what the rule makes, an explicit size may say


@given(SIDES, SIDES, st.integers(2, 9))
def test_the_rule_knows_shapes_and_not_sizes(width: int, height: int, factor: int):
    if not 0.25 <= width / height <= 4:
        return
    made = canvas_from_size(width, height)
    assert canvas_from_size(height, width) == made[::-1]
    assert canvas_from_size(width * factor, height * factor) == made
    assert canvas_from_ratio(f"{width}:{height}") == made


def is_legal(width: int, height: int) -> bool:
    try:
        check_canvas(width, height)
    except InvalidRequestError:
        return False
    return True


@given(st.integers(-100, 9000) | st.integers(), st.sampled_from(range(32, MAX_SIDE + 1, 32)))
def test_a_refused_side_is_told_its_legal_neighbours(side: int, other: int):
    with_neighbours = r"^width: .*; nearest: (\d+)(?: or (\d+))?$"
    if side % 32 == 0 and 32 <= side <= MAX_SIDE:
        assert is_legal(side, side)
        return
    with pytest.raises(InvalidRequestError) as refusal:
        check_canvas(side, other)
    told = re.match(with_neighbours, str(refusal.value))
    assert told is not None
    near = [int(one) for one in told.groups() if one]
    assert all(is_legal(one, one) for one in near)
    assert min(abs(one - side) for one in near) == min(
        abs(one - side) for one in range(32, MAX_SIDE + 1, 32)
    )


@given(st.sampled_from(range(32, MAX_SIDE + 1, 32)), st.sampled_from(range(32, MAX_SIDE + 1, 32)))
def test_a_refused_ratio_is_told_the_widths_that_fit(width: int, height: int):
    if is_legal(width, height):
        assert 0.25 <= width / height <= 4
        return
    with pytest.raises(InvalidRequestError) as refusal:
        check_canvas(width, height)
    told = re.search(r"legal: (\d+)\.\.(\d+) with height", str(refusal.value))
    assert told is not None
    low, high = map(int, told.groups())
    assert is_legal(low, height)
    assert is_legal(high, height)
    assert not low <= width <= high
    assert not is_legal(low - 32, height)
    assert not is_legal(high + 32, height)
