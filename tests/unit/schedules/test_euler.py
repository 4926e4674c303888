import pytest
import torch
from diffusers import MiniMaxH3Scheduler

from minimax_h3.schedules.euler import EulerStep, euler_step_, euler_steps
from minimax_h3.schedules.sigma import SigmaSchedule


def rows(seed: int) -> torch.Tensor:
    return torch.randn(33, 96, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("num_points", "shift"), [(50, 12.0), (50, 3.0), (5, 3.0), (200, 6.0)])
def test_every_step_is_bitwise_the_reference(num_points: int, shift: float) -> None:
    scheduler = MiniMaxH3Scheduler(shift=shift)
    scheduler.set_timesteps(num_points)
    expected, actual = rows(0), rows(0)
    steps = euler_steps(SigmaSchedule.build(num_points, shift))
    assert len(steps) == num_points - 1
    for index, (time, step) in enumerate(zip(scheduler.timesteps, steps, strict=True)):
        velocity = rows(index + 1)
        expected = scheduler.step(velocity, time, expected, return_dict=False)[0]
        euler_step_(actual, velocity.clone(), step)
        assert torch.equal(actual, expected), index


def test_velocity_points_at_the_data() -> None:
    noise, clean = rows(0), rows(1)
    state = noise.clone()
    for step in euler_steps(SigmaSchedule.build(9, 12.0)):
        euler_step_(state, clean - noise, step)
    torch.testing.assert_close(state, clean, rtol=0, atol=2e-6)


def test_a_step_moves_by_the_difference_of_sigmas() -> None:
    schedule = SigmaSchedule.build(50, 3.0)
    for index, step in enumerate(euler_steps(schedule)):
        state, velocity = rows(0), rows(1)
        moved = state + (schedule.sigmas[index] - schedule.sigmas[index + 1]) * velocity
        euler_step_(state, velocity, step)
        torch.testing.assert_close(state, moved, rtol=0, atol=2e-6)


def test_the_last_step_is_the_clean_estimate() -> None:
    schedule = SigmaSchedule.build(50, 12.0)
    state, velocity = rows(0), rows(1)
    clean = state + (1 - schedule.times[-1]) * velocity
    euler_step_(state, velocity, euler_steps(schedule)[-1])
    assert torch.equal(state, clean)


def test_clean_estimate_and_ratio_have_sources_of_their_own() -> None:
    schedule = SigmaSchedule.build(50, 3.0)
    scales = [step.velocity_scale for step in euler_steps(schedule)]
    sigmas = schedule.sigmas[:-1].tolist()
    late = [(a, b) for a, b in zip(scales, sigmas, strict=True) if b < 0.5]
    assert any(a != b for a, b in late)
    assert all(a == b for a, b in zip(scales, sigmas, strict=True) if b >= 0.5)


def test_coefficients_are_host_numbers() -> None:
    step = euler_steps(SigmaSchedule.build(5, 3.0))[1]
    assert step == EulerStep(step.velocity_scale, step.keep, step.take)
    assert all(type(v) is float for v in (step.velocity_scale, step.keep, step.take))


def test_half_precision_rows_are_a_bug() -> None:
    step = euler_steps(SigmaSchedule.build(5, 3.0))[0]
    with pytest.raises(AssertionError):
        euler_step_(rows(0).bfloat16(), rows(1).bfloat16(), step)
