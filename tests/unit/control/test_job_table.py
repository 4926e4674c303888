"""Admission, turns, progress and cancel as pure state."""

import json

import pytest

from minimax_h3.control import registry
from minimax_h3.control.job_table import JobTable
from minimax_h3.control.registry import Limits
from minimax_h3.core.errors import CapacityError, InvalidRequestError


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def facts(job_id: str, alias: str = "") -> dict[str, object]:
    return {"job_id": job_id, "alias": alias, "task": "t2va", "num_steps": 49, "num_clips": 1}


def table(clock: Clock | None = None, running: int = 2, most: int = 4) -> JobTable:
    return JobTable(Limits(running, most, 3, 60.0), clock or Clock())


def say(jobs: JobTable, op: str, job_id: str, **more: object) -> dict[str, object]:
    return jobs.handle({"op": op, **facts(job_id), **more})


def test_turns_are_given_in_order_and_handed_on() -> None:
    jobs = table()
    for name in "abcd":
        say(jobs, "register", name)
    assert [say(jobs, "turn", name)["go"] for name in "abcd"] == [True, True, False, False]
    assert say(jobs, "turn", "c")["position"] == 1
    assert say(jobs, "turn", "d")["position"] == 2
    assert {say(jobs, "turn", name)["slot"] for name in "ab"} == {0, 1}
    say(jobs, "release", "a")
    assert say(jobs, "turn", "d")["go"] is False  # c asked first
    assert say(jobs, "turn", "c") == {"go": True, "slot": 0, "position": 0, "cancel": False}
    assert say(jobs, "turn", "d")["position"] == 1


def test_a_full_server_refuses_with_a_hint() -> None:
    jobs = table()
    for name in "abcd":
        say(jobs, "register", name)
    with pytest.raises(CapacityError, match=r"4 jobs are active.*retry after 5 s"):
        say(jobs, "register", "e")
    say(jobs, "finish", "b")
    say(jobs, "register", "e")


def test_an_alias_is_refused_only_while_in_use() -> None:
    jobs = table()
    say(jobs, "register", "a", alias="mine")
    with pytest.raises(InvalidRequestError, match="request id: 'mine' is in use"):
        say(jobs, "register", "b", alias="mine")
    assert jobs.handle({"op": "get", "id": "mine"})["job_id"] == "a"
    say(jobs, "finish", "a")
    say(jobs, "register", "b", alias="mine")
    assert jobs.handle({"op": "get", "id": "mine"})["job_id"] == "b"


def test_cancel_reaches_the_worker_at_its_next_word() -> None:
    jobs = table()
    say(jobs, "register", "a", alias="mine")
    assert say(jobs, "progress", "a", stage="denoiser", step=3)["cancel"] is False
    assert jobs.handle({"op": "cancel", "id": "mine"})["cancelled"] is True
    assert say(jobs, "progress", "a", stage="denoiser", step=4)["cancel"] is True
    assert say(jobs, "touch", "a", stage="denoiser")["cancel"] is True
    assert say(jobs, "turn", "a")["cancel"] is True
    say(jobs, "fail", "a", stage="denoiser", kind="cancelled", message="was cancelled")
    assert jobs.handle({"op": "get", "id": "a"})["state"] == "cancelled"
    assert jobs.handle({"op": "cancel", "id": "nobody"}) == {"cancelled": False, "unknown": True}


def test_a_finished_job_is_not_cancelled_and_not_failed_later() -> None:
    jobs = table()
    say(jobs, "register", "a")
    say(jobs, "finish", "a")
    assert jobs.handle({"op": "cancel", "id": "a"})["cancelled"] is False
    say(jobs, "fail", "a", stage="muxer", kind="internal", message="late")
    assert jobs.handle({"op": "get", "id": "a"})["state"] == "finished"


def test_sessions_are_known_until_the_job_ends() -> None:
    jobs = table()
    say(jobs, "register", "a")
    say(jobs, "session", "a", session_id="s")
    assert jobs.handle({"op": "session_known", "session_id": "s"})["known"] is True
    say(jobs, "fail", "a", stage="dit", kind="internal", message="boom")
    assert jobs.handle({"op": "session_known", "session_id": "s"})["known"] is False


def test_a_reborn_table_takes_running_jobs_up_again() -> None:
    jobs = table()
    assert say(jobs, "progress", "a", alias="mine", stage="denoiser", step=7)["cancel"] is False
    described = jobs.handle({"op": "get", "id": "mine"})
    assert (described["job_id"], described["stage"], described["step"]) == ("a", "denoiser", 7)


def test_a_job_nobody_speaks_of_is_ended() -> None:
    clock = Clock()
    jobs = table(clock)
    say(jobs, "register", "a")
    say(jobs, "turn", "a")
    clock.now += 61
    assert jobs.handle({"op": "ping"})["active"] == 0
    described = jobs.handle({"op": "get", "id": "a"})
    assert described["state"] == "failed"
    assert described["error"] == {
        "stage": "denoiser",
        "kind": "worker_lost",
        "message": "no worker spoke of this job for 60 s",
    }


def test_old_jobs_are_forgotten() -> None:
    clock = Clock()
    jobs = table(clock)
    say(jobs, "register", "a", alias="mine")
    say(jobs, "finish", "a")
    clock.now += registry.KEEP_ENDED_S + 1
    assert jobs.handle({"op": "get", "id": "mine"}) == {"unknown": True}


def test_finished_jobs_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "KEEP_ENDED", 3)
    clock = Clock()
    jobs = table(clock)
    for index in range(10):
        say(jobs, "register", f"j{index}")
        say(jobs, "finish", f"j{index}")
        clock.now += registry.EXPIRE_EVERY_S
    listed = jobs.handle({"op": "list"})["jobs"]
    assert isinstance(listed, list)
    assert [job["job_id"] for job in listed] == ["j7", "j8", "j9"]


@pytest.mark.parametrize(
    ("operation", "named"),
    [
        ({}, "op"),
        ({"op": "reboot"}, "op"),
        ({"op": ["get"]}, "op"),
        ({"op": "get"}, "id"),
        ({"op": "get", "id": 3}, "id"),
        ({"op": "get", "id": "x" * 129}, "id"),
        ({"op": "register", "job_id": ""}, "job_id"),
        ({"op": "progress", "job_id": "a", "task": "t2va", "num_steps": -1}, "num_steps"),
        ({"op": "progress", "job_id": "a", "task": "t2va", "stage": "d", "step": True}, "step"),
    ],
)
def test_bad_operations_are_named(operation: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{named}: "):
        table().handle(operation)


def test_answers_are_json() -> None:
    jobs = table()
    say(jobs, "register", "a")
    for op in ("ping", "list"):
        json.dumps(jobs.handle({"op": op}))
