"""Forecasts against a step-by-step simulation of the turns."""

import random

import pytest

from minimax_h3.control.costs import KEPT_SIZES, CostModel, Load, finish_times


def simulate(running: list[Load], waiting: list[Load], places: int) -> dict[str, float]:
    """Every step on its own: each running job one step a round, free turns to the next."""
    active, queue = [[load, load.steps_left] for load in running], list(waiting)
    now, done = 0.0, {}
    while active or queue:
        while queue and len(active) < places:
            load = queue.pop(0)
            active.append([load, load.steps_left])
        now += sum(load.step_s for load, _ in active)
        for entry in active:
            entry[1] -= 1
        done |= {load.job_id: now for load, left in active if left <= 0}
        active = [entry for entry in active if entry[1] > 0]
    return done


def test_two_equal_jobs_take_twice_as_long() -> None:
    ends = finish_times([Load("a", 10, 1.0), Load("b", 10, 1.0)], [], 2)
    assert ends == {"a": 20.0, "b": 20.0}


def test_a_waiting_job_enters_when_a_turn_is_free() -> None:
    ends = finish_times([Load("a", 2, 1.0)], [Load("b", 3, 2.0)], 1)
    assert ends == {"a": 2.0, "b": 8.0}


@pytest.mark.parametrize("seed", range(20))
def test_equals_the_simulation(seed: int) -> None:
    rng = random.Random(seed)
    loads = [
        Load(f"j{n}", rng.randint(1, 60), rng.choice((0.5, 1.0, 2.5)))
        for n in range(rng.randint(1, 9))
    ]
    places = rng.randint(1, 4)
    running, waiting = loads[:places], loads[places:]
    wanted = simulate(running, waiting, places)
    assert finish_times(running, waiting, places) == pytest.approx(wanted)


def test_an_empty_server_has_no_forecast() -> None:
    assert finish_times([], [], 4) == {}


def test_an_unknown_size_is_scaled_from_the_nearest() -> None:
    costs = CostModel()
    assert costs.step_s(1000) is None
    costs.steps.learn(1000, 0.1)
    costs.steps.learn(50_000, 9.0)
    assert costs.step_s(2000) == pytest.approx(0.2)
    assert costs.step_s(1000) == 0.1


def test_one_slow_measurement_moves_no_estimate_and_a_slower_server_does() -> None:
    costs = CostModel()
    for seconds in (1.0, 1.1, 0.9, 60.0):
        costs.steps.learn(1000, seconds)
        costs.after.learn(1000, seconds)
        costs.before.append(seconds)
    estimates = (costs.step_s(1000), costs.after_s(1000), costs.before_s())
    assert estimates == (1.0, 1.0, 1.0)
    for _ in range(5):
        costs.steps.learn(1000, 2.0)
    assert costs.step_s(1000) == 2.0


def test_the_end_of_a_small_job_tells_little_about_a_large_one() -> None:
    costs = CostModel()
    for _ in range(3):
        costs.after.learn(100, 1.0)  # mostly the same for any size
        costs.after.learn(40_000, 8.0)
    assert costs.after_s(50_000) == pytest.approx(10.0)
    assert costs.after_s(100) == 1.0


def test_a_refusal_needs_more_than_a_first_impression() -> None:
    costs = CostModel()
    for count in range(1, 4):
        assert costs.sure().step_s(1000) is None
        assert (costs.sure().before_s(), costs.sure().after_s(1000)) == (0.0, 0.0)
        costs.steps.learn(1000, 1.0)
        costs.after.learn(1000, 2.0)
        costs.before.append(3.0)
        assert costs.step_s(1000) == 1.0, count
    sure = costs.sure()
    assert (sure.step_s(1000), sure.before_s(), sure.after_s(1000)) == (1.0, 3.0, 2.0)
    assert sure.step_s(4000) == 4.0
    assert sure.step_s(4001) is None
    assert sure.step_s(200) is None


def test_only_so_many_sizes_are_kept() -> None:
    costs = CostModel()
    for rows in range(1, 3 * KEPT_SIZES):
        costs.steps.learn(rows, 1.0)
    assert len(costs.steps) == KEPT_SIZES
