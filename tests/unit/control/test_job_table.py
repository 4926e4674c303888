"""Admission, turns, progress and cancel as pure state."""

import json

import pytest

from minimax_h3.control import registry
from minimax_h3.control.job_table import JobTable
from minimax_h3.control.registry import Limits
from minimax_h3.core.errors import (
    CapacityError,
    DeadlineRefusedError,
    InvalidRequestError,
    NotAvailableError,
)


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


def enqueue(jobs: JobTable, job_id: str, **more: object) -> dict[str, object]:
    return say(jobs, "enqueue", job_id, streamed=True, **more)


def watch(jobs: JobTable, *job_ids: str, seen: int = 0) -> dict[str, dict]:
    entries = [{**facts(name), "streamed": True, "seen": seen} for name in job_ids]
    answer = jobs.handle({"op": "watch", "jobs": entries})["jobs"]
    return {told["job_id"]: told for told in answer}  # type: ignore[attr-defined]


def test_streams_wait_for_a_place_and_enter_by_priority() -> None:
    jobs = table(running=1, most=1)
    for name, priority in (("a", "normal"), ("b", "low"), ("c", "high")):
        enqueue(jobs, name, priority=priority)
    told = watch(jobs, "a", "b", "c")
    assert [told[name]["state"] for name in "abc"] == ["running", "queued", "queued"]
    assert [told[name]["position"] for name in "abc"] == [0, 2, 1]
    with pytest.raises(CapacityError):  # those who wait came first
        say(jobs, "register", "unary")
    say(jobs, "finish", "a")
    assert watch(jobs, "c")["c"]["state"] == "running"
    assert say(jobs, "register", "c")["job_id"] == "c"  # its place is kept


def test_a_queued_job_is_cancelled_at_once() -> None:
    jobs = table(running=1, most=1)
    enqueue(jobs, "a")
    enqueue(jobs, "b")
    assert jobs.handle({"op": "cancel", "id": "b"})["state"] == "cancelled"
    assert watch(jobs, "b")["b"]["error"]["kind"] == "cancelled"
    assert jobs.handle({"op": "ping"})["queued"] == 0


def test_a_reborn_table_takes_streams_up_in_their_state() -> None:
    jobs = table(running=1, most=1)
    entries = [
        {**facts("a"), "streamed": True, "queued": False},
        {**facts("b"), "streamed": True, "queued": True},
    ]
    told = jobs.handle({"op": "watch", "jobs": entries})["jobs"]
    assert [entry["state"] for entry in told] == ["running", "queued"]  # type: ignore[attr-defined]


def test_a_named_client_is_limited() -> None:
    jobs = table(most=9)
    for name in "abc":
        say(jobs, "register", name, client="one")
    with pytest.raises(CapacityError, match=r"client 'one' has 3 unfinished jobs.*retry after"):
        say(jobs, "register", "d", client="one")
    with pytest.raises(CapacityError, match="client 'one'"):
        enqueue(jobs, "e", client="one")
    say(jobs, "register", "f", client="two")
    say(jobs, "register", "g")
    say(jobs, "finish", "a")
    say(jobs, "register", "h", client="one")


def loop(jobs: JobTable, clock: Clock, name: str, steps: int, **more: object) -> None:
    say(jobs, "turn", name, rows=1000, **more)
    for step in range(steps):
        say(jobs, "progress", name, stage="denoiser", step=step, stage_steps=49, step_s=1.0)
        clock.now += 1.0


def test_an_unmeetable_deadline_is_refused_only_with_experience() -> None:
    clock = Clock()
    jobs = table(clock)
    say(jobs, "register", "a", rows=1000, deadline_s=5.0)
    loop(jobs, clock, "a", 9)
    with pytest.raises(DeadlineRefusedError, match=r"deadline_s: 60 cannot be met.* about 90 s"):
        say(jobs, "register", "b", rows=1000, deadline_s=60.0)
    say(jobs, "register", "b", rows=1000, deadline_s=100.0)
    assert jobs.handle({"op": "get", "id": "b"})["expected_s"] == pytest.approx(89, abs=2)


def whole_job(jobs: JobTable, clock: Clock, name: str, around_s: float) -> None:
    """A job of nine forwards of 1 s, and `around_s` before and after them."""
    say(jobs, "register", name, rows=1000, num_steps=9)
    clock.now += around_s
    loop(jobs, clock, name, 9, num_steps=9)
    say(jobs, "release", name)
    clock.now += around_s
    say(jobs, "finish", name)


@pytest.mark.parametrize("slow", [0, 2, 3])
def test_one_slow_job_refuses_no_deadline(slow: int) -> None:
    """A cold first job, or one beside somebody else's work on the machine."""
    clock = Clock()
    jobs = table(clock)
    for number in range(slow + 1):
        whole_job(jobs, clock, f"j{number}", 100.0 if number == slow else 1.0)
    say(jobs, "register", "next", rows=1000, num_steps=9, deadline_s=20.0)
    with pytest.raises(DeadlineRefusedError, match="deadline_s: 10 cannot be met"):
        say(jobs, "register", "other", rows=1000, num_steps=9, deadline_s=10.0)


def test_a_forecast_counts_the_turns_of_others() -> None:
    clock = Clock()
    jobs = table(clock, running=2)
    say(jobs, "register", "a", rows=1000)
    loop(jobs, clock, "a", 10)
    alone = jobs.handle({"op": "get", "id": "a"})
    say(jobs, "register", "b", rows=1000)
    say(jobs, "turn", "b")
    shared = jobs.handle({"op": "get", "id": "a"})
    assert alone["expected_s"] == pytest.approx(10 + 40, abs=1)  # type: ignore[operator]
    assert shared["expected_s"] == pytest.approx(10 + 2 * 40, abs=1)  # type: ignore[operator]
    assert shared["expected_step_s"] == pytest.approx(2.0)


def test_stages_that_owe_a_word_are_known() -> None:
    jobs = table()
    say(jobs, "register", "a")
    awaiting = lambda: jobs.handle({"op": "get", "id": "a"})["awaiting"]  # noqa: E731
    say(jobs, "progress", "a", stage="text_encoder")
    assert awaiting() == ["condition_encoder", "text_encoder"]
    say(jobs, "left", "a", stage="condition_encoder")
    say(jobs, "left", "a", stage="text_encoder")
    assert awaiting() == ["denoiser"]
    say(jobs, "turn", "a")
    say(jobs, "release", "a")
    assert awaiting() == ["audio_decoder", "video_decoder"]
    say(jobs, "left", "a", stage="audio_decoder")
    say(jobs, "left", "a", stage="video_decoder")
    assert awaiting() == ["muxer"]


def test_a_lost_worker_ends_its_own_jobs_only() -> None:
    jobs = table(running=4)
    for name in "abc":
        say(jobs, "register", name)
    for name in "ab":
        say(jobs, "turn", name)
    say(jobs, "session", "a", session_id="s-a", dit="dit_fl2va")
    say(jobs, "release", "b")
    say(jobs, "left", "b", stage="audio_decoder")
    lost = lambda model: jobs.handle({"op": "worker_lost", "model": model})["ended"]  # noqa: E731
    assert lost("dit_fl2va") == ["a"]
    assert lost("audio_decoder") == ["c"]  # b is done with it
    assert lost("video_decoder") == ["b"]
    assert jobs.handle({"op": "ping"})["active"] == 0
    told = jobs.handle({"op": "get", "id": "a"})
    assert (told["state"], told["error"]["kind"]) == ("failed", "worker_lost")  # type: ignore[index]
    # Who still works on it is told at the next word, and the DiT ends what nobody else will.
    assert say(jobs, "progress", "a", stage="denoiser", step=3)["kind"] == "worker_lost"
    assert jobs.handle({"op": "orphans", "sessions": ["s-a", "s-x"]}) == {"orphans": ["s-a"]}
    enqueue(jobs, "d")
    assert lost("minimax_h3_stream") == ["d"]


def test_a_stage_beside_the_one_that_failed_stops() -> None:
    jobs = table()
    say(jobs, "register", "a")
    say(jobs, "fail", "a", stage="audio_decoder", kind="internal", message="boom")
    told = say(jobs, "progress", "a", stage="video_decoder", step=2)
    assert told["cancel"] is True
    assert "has ended in audio_decoder: boom" in str(told["message"])


def test_draining_admits_nothing_and_can_stop_everything() -> None:
    jobs = table(running=1, most=1)
    enqueue(jobs, "a")
    enqueue(jobs, "b")
    assert jobs.handle({"op": "drain"})["active"] == 1
    assert watch(jobs, "b")["b"]["error"]["kind"] == "capacity"
    with pytest.raises(CapacityError, match="the server is stopping"):
        say(jobs, "register", "c")
    jobs.handle({"op": "drain", "cancel": True})
    assert say(jobs, "touch", "a", stage="denoiser")["kind"] == "cancelled"
    jobs.handle({"op": "drain", "on": False})
    say(jobs, "fail", "a", stage="denoiser", kind="cancelled", message="")
    say(jobs, "register", "c")


def test_clients_may_look_and_cancel_but_not_play_worker() -> None:
    jobs = table()
    for op in ("finish", "fail", "drain", "worker_lost", "watch"):
        with pytest.raises(NotAvailableError, match=f"op: '{op}' is for this server's own models"):
            jobs.handle({"op": op, **facts("a")}, trusted=False)
    assert jobs.handle({"op": "ping"}, trusted=False)["ok"] is True


def test_a_timeline_has_every_step_and_is_kept_for_the_newest_jobs_only() -> None:
    clock = Clock()
    jobs = table(clock, most=99)
    for index in range(registry.KEEP_TIMELINES + 1):
        name = f"j{index}"
        say(jobs, "register", name)
        loop(jobs, clock, name, 3)
        say(jobs, "finish", name)
    marks = jobs.handle({"op": "timeline", "id": "j5"})["marks"]
    assert [mark[:2] for mark in marks] == [["denoiser", step] for step in range(3)]  # type: ignore[attr-defined]
    assert jobs.handle({"op": "timeline", "id": "j0"})["marks"] == []
    assert jobs.handle({"op": "timeline", "id": "nobody"}) == {"unknown": True}


def test_a_stopped_step_is_not_in_the_timeline() -> None:
    jobs = table()
    say(jobs, "register", "a")
    loop(jobs, Clock(), "a", 2)
    jobs.handle({"op": "cancel", "id": "a"})
    assert say(jobs, "progress", "a", stage="denoiser", step=2, stage_steps=49)["cancel"] is True
    assert len(jobs.handle({"op": "timeline", "id": "a"})["marks"]) == 2  # type: ignore[arg-type]
