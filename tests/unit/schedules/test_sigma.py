import math

import pytest
import torch
from diffusers import MiniMaxH3Scheduler
from hypothesis import example, given
from hypothesis import strategies as st

from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.schedules.sigma import SigmaSchedule


def reference(num_points: int, shift: float) -> MiniMaxH3Scheduler:
    scheduler = MiniMaxH3Scheduler(shift=shift)
    scheduler.set_timesteps(num_points)
    return scheduler


@pytest.mark.parametrize("shift", [0.5, 1.0, 3.0, 6.0, 10.0, 12.0, 100.0])
@pytest.mark.parametrize("num_points", [2, 3, 5, 9, 30, 50, 51, 200])
def test_schedule_is_bitwise_the_reference(num_points: int, shift: float) -> None:
    expected = reference(num_points, shift)
    schedule = SigmaSchedule.build(num_points, shift)
    assert schedule.sigmas.dtype == schedule.times.dtype == torch.float32
    assert torch.equal(schedule.sigmas, expected.sigmas)
    assert torch.equal(schedule.times, expected.timesteps)
    assert schedule.num_points == num_points
    assert schedule.num_forwards == expected.num_inference_steps


@given(st.integers(2, 200), st.floats(0.05, 100.0))
@example(2, 0.15)  # two ulps above 1
def test_any_legal_schedule_is_bitwise_the_reference(num_points: int, shift: float) -> None:
    expected = reference(num_points, shift)
    assert torch.equal(SigmaSchedule.build(num_points, shift).sigmas, expected.sigmas)


def test_50_points_are_49_forwards() -> None:
    schedule = SigmaSchedule.build(50, 12.0)
    assert (schedule.num_points, schedule.num_forwards) == (50, 49)
    assert schedule.times.numel() == 49
    assert schedule.sigmas[-1] == 0.0
    assert schedule.times[0] == 0.0


@pytest.mark.parametrize(
    ("shift", "first", "last_but_one"),
    [(12.0, [1.0, 0.998267, 0.996466], 0.2), (3.0, [1.0, 0.993103, 0.986014], 0.058824)],
)
def test_released_schedules(shift: float, first: list[float], last_but_one: float) -> None:
    sigmas = SigmaSchedule.build(50, shift).sigmas
    torch.testing.assert_close(sigmas[:3], torch.tensor(first), rtol=0, atol=5e-7)
    assert math.isclose(float(sigmas[-2]), last_but_one, abs_tol=5e-7)


def test_five_points_of_shift_three() -> None:
    sigmas = SigmaSchedule.build(5, 3.0).sigmas
    torch.testing.assert_close(sigmas, torch.tensor([1.0, 0.9, 0.75, 0.5, 0.0]))


def test_explicit_sigmas_are_used_as_they_are() -> None:
    points = [1.0, 0.5, 0.125, 0.0]
    expected = MiniMaxH3Scheduler()
    expected.set_timesteps(sigmas=points)
    schedule = SigmaSchedule.from_sigmas(points)
    assert schedule.sigmas.tolist() == points
    assert torch.equal(schedule.times, expected.timesteps)


def test_a_schedule_may_start_below_one() -> None:
    assert SigmaSchedule.from_sigmas(torch.tensor([0.999, 0.5, 0.0])).num_forwards == 2


@pytest.mark.parametrize(
    ("points", "named"),
    [
        ([], "shape 0"),
        ([1.0], "shape 1"),
        ([[1.0, 0.0]], "shape 1x2"),
        ([1.5, 0.5, 0.0], r"sigmas\[0\]: 1.5"),
        ([1.1, 0.0], r"sigmas\[0\]: 1.1"),
        ([0.0, 1.0], r"sigmas\[1\]: 1"),
        ([1.0, 1.0, 0.0], r"sigmas\[1\]: 1"),
        ([1.0, 0.5, 0.5, 0.0], r"sigmas\[2\]: 0.5"),
        ([1.0, -0.1], r"sigmas\[1\]: -0.1"),
        ([1.0, 0.5, 0.1], r"sigmas\[2\]: 0.1"),
        ([1.0, math.nan, 0.0], r"sigmas\[1\]: nan"),
        ([math.nan, 0.0], r"sigmas\[0\]: nan"),
        ([math.inf, 0.0], r"sigmas\[0\]: inf"),
        ([1.0, 1.0 - 1e-9, 0.0], r"sigmas\[1\]: 1"),
    ],
)
def test_bad_points_are_refused_by_name(points: list[float], named: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{named}.*legal: at least two"):
        SigmaSchedule.from_sigmas(points)


@pytest.mark.parametrize("num_points", [1, 0, -3])
def test_too_few_points_are_refused(num_points: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"num_points: {num_points} "):
        SigmaSchedule.build(num_points, 12.0)


@pytest.mark.parametrize("shift", [0.0, -1.0, math.nan, math.inf])
def test_bad_shifts_are_refused(shift: float) -> None:
    with pytest.raises(InvalidRequestError, match="shift"):
        SigmaSchedule.build(50, shift)


def test_the_first_point_is_not_clipped() -> None:
    """Some shifts round the first point to one ulp above 1; the reference keeps it, so do we."""
    assert SigmaSchedule.build(50, 1 / 3).sigmas[0] > 1.0


def test_points_that_fp32_cannot_tell_apart_are_refused_not_dropped() -> None:
    assert reference(200, 1e7).sigmas.numel() < 200
    with pytest.raises(InvalidRequestError, match="strictly decreasing"):
        SigmaSchedule.build(200, 1e7)
