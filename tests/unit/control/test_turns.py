"""Who is next."""

import random

from minimax_h3.control.turns import MAX_PASSED_OVER, TurnQueue


def queue(*entries: tuple[str, str]) -> TurnQueue:
    made = TurnQueue()
    for job_id, priority in entries:
        made.push(job_id, priority)
    return made


def test_equals_enter_in_the_order_in_which_they_came() -> None:
    turns = queue(("a", "normal"), ("b", "normal"), ("c", "normal"))
    assert [turns.pop() for _ in range(3)] == ["a", "b", "c"]


def test_a_higher_priority_enters_first() -> None:
    turns = queue(("a", "low"), ("b", "normal"), ("c", "high"), ("d", "normal"))
    assert turns.order() == ["c", "b", "d", "a"]
    assert [turns.pop() for _ in range(4)] == ["c", "b", "d", "a"]


def test_nobody_is_passed_over_more_than_ten_times() -> None:
    turns = queue(("patient", "low"))
    entered = []
    for index in range(30):
        turns.push(f"high{index}", "high")
        entered.append(turns.pop())
    assert entered.index("patient") == MAX_PASSED_OVER


def test_a_later_job_that_enters_later_does_not_pass_anybody_over() -> None:
    turns = queue(("first", "normal"))
    for index in range(3 * MAX_PASSED_OVER):
        turns.push(f"later{index}", "low")
    assert turns.pop() == "first"
    assert turns.pop() == "later0"


def test_joining_twice_keeps_the_place_and_leaving_is_final() -> None:
    turns = queue(("a", "normal"), ("b", "normal"))
    turns.push("a", "normal")
    turns.remove("a")
    assert "a" not in turns
    assert [turns.pop(), len(turns)] == ["b", 0]
    assert turns.pop() is None


def test_who_cannot_enter_keeps_the_place_and_is_not_passed_over() -> None:
    turns = queue(("a", "normal"), *((f"b{n}", "normal") for n in range(12)), ("c", "high"))
    assert turns.pop(blocked={"a", "c"}) == "b0"
    assert [turns.pop(blocked={"a"}) for _ in range(12)] == ["c", *(f"b{n}" for n in range(1, 12))]
    assert turns.pop(blocked={"a"}) is None
    turns.push("d", "high")
    assert [turns.pop(), turns.pop()] == ["d", "a"]


def test_looking_at_the_order_changes_nothing() -> None:
    rng = random.Random(0)
    turns = queue(*((f"j{n}", rng.choice(("low", "normal", "high"))) for n in range(40)))
    ahead = turns.order()
    assert ahead == turns.order()
    assert [turns.pop() for _ in range(40)] == ahead
