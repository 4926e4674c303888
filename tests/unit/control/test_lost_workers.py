"""A model dies: which jobs end with it, and what waits for its return."""

import pytest

from minimax_h3.control.job_table import JobTable
from minimax_h3.control.registry import Limits
from minimax_h3.core.errors import CapacityError, InvalidRequestError


@pytest.fixture
def jobs() -> JobTable:
    return JobTable(Limits(2, 6, 3, 60.0), lambda: 100.0)


def say(jobs: JobTable, op: str, job_id: str, **more: object) -> dict:
    facts = {"job_id": job_id, "alias": "", "task": "t2va", "num_steps": 49, "num_clips": 1}
    return jobs.handle({"op": op, **facts, **more})


def lose(jobs: JobTable, model: str, *pids: int) -> list[str]:
    return jobs.handle({"op": "worker_lost", "model": model, "pids": list(pids)})["ended"]


def looping(jobs: JobTable, job_id: str, pid: int) -> None:
    say(jobs, "register", job_id)
    say(jobs, "turn", job_id, pid=pid)
    say(jobs, "session", job_id, session_id=f"s-{job_id}", dit="dit_fl2va")


@pytest.mark.parametrize("model", ["dit_fl2va", "video_decoder", "audio_decoder", "muxer"])
def test_a_job_in_the_loop_ends_with_the_dit_and_with_what_comes_later(
    jobs: JobTable, model: str
) -> None:
    looping(jobs, "a", 11)
    assert lose(jobs, model) == ["a"]
    answer = jobs.handle({"op": "get", "id": "a"})
    assert answer["error"]["kind"] == "worker_lost"
    assert answer["error"]["message"] == f"the process of {model} died or hung; retry"
    assert say(jobs, "progress", "a", stage="denoiser")["kind"] == "worker_lost"


@pytest.mark.parametrize("model", ["preprocess", "text_encoder", "condition_encoder", "results"])
def test_a_job_in_the_loop_is_past_the_encoders(jobs: JobTable, model: str) -> None:
    looping(jobs, "a", 11)
    assert lose(jobs, model) == []


def test_of_two_loops_only_the_dead_one_takes_its_job_along(jobs: JobTable) -> None:
    looping(jobs, "a", 11)
    looping(jobs, "b", 12)
    assert lose(jobs, "denoiser", 12) == ["b"]
    assert say(jobs, "progress", "a", stage="denoiser")["cancel"] is False


def test_a_job_at_a_decoder_ends_with_it(jobs: JobTable) -> None:
    looping(jobs, "a", 11)
    say(jobs, "release", "a")
    say(jobs, "progress", "a", stage="video_decoder")
    assert lose(jobs, "dit_fl2va") == []
    assert lose(jobs, "audio_decoder") == ["a"]


def test_while_a_model_is_away_nothing_is_admitted(jobs: JobTable) -> None:
    lose(jobs, "muxer")
    with pytest.raises(CapacityError, match=r"muxer is being started again; retry after 5 s"):
        say(jobs, "register", "a")
    jobs.handle({"op": "worker_back", "model": "muxer"})
    say(jobs, "register", "a")


@pytest.mark.parametrize("model", ["minimax_h3_stream", "results", "dit_ref2va"])
def test_a_model_that_a_job_does_not_need_refuses_nothing(jobs: JobTable, model: str) -> None:
    lose(jobs, model)
    assert say(jobs, "register", "a")["job_id"] == "a"


def test_while_the_dit_is_away_no_turn_is_given(jobs: JobTable) -> None:
    for name in "abc":
        say(jobs, "register", name)
    lose(jobs, "dit_fl2va")
    assert say(jobs, "turn", "a", pid=1)["go"] is False
    jobs.handle({"op": "worker_back", "model": "dit_fl2va"})
    assert say(jobs, "turn", "a", pid=1)["go"] is True


def test_the_other_dits_jobs_go_on_while_one_dit_is_away(jobs: JobTable) -> None:
    for name, task in (("a", "t2va"), ("b", "ref2va"), ("c", "t2va")):
        say(jobs, "register", name, task=task)
    lose(jobs, "dit_fl2va")
    assert say(jobs, "turn", "a", pid=1)["go"] is False
    assert say(jobs, "turn", "b", task="ref2va", pid=2)["go"] is True
    assert say(jobs, "turn", "c", pid=3)["position"] == 2
    jobs.handle({"op": "worker_back", "model": "dit_fl2va"})
    assert say(jobs, "turn", "a", pid=1)["go"] is True
    assert say(jobs, "turn", "c", pid=3)["go"] is False  # two turns are given at a time


def test_streams_of_the_other_dit_get_a_place_while_one_is_away(jobs: JobTable) -> None:
    lose(jobs, "dit_ref2va")
    say(jobs, "enqueue", "a", task="ref2va", streamed=True)
    say(jobs, "enqueue", "b", task="fl2va", streamed=True)
    assert jobs.handle({"op": "get", "id": "a"})["state"] == "queued"
    assert jobs.handle({"op": "get", "id": "b"})["state"] == "running"
    jobs.handle({"op": "worker_back", "model": "dit_ref2va"})
    assert jobs.handle({"op": "get", "id": "a"})["state"] == "running"


def test_ends_are_counted_by_kind(jobs: JobTable) -> None:
    looping(jobs, "a", 11)
    looping(jobs, "b", 12)
    assert jobs.states() == {"queued": 0, "waiting": 0, "running": 2}
    lose(jobs, "dit_fl2va")
    assert dict(jobs.ended) == {("failed", "worker_lost"): 2}


def test_pids_are_numbers(jobs: JobTable) -> None:
    with pytest.raises(InvalidRequestError, match="pids: "):
        jobs.handle({"op": "worker_lost", "model": "muxer", "pids": ["1"]})


def test_a_stream_waits_for_a_model_that_is_away(jobs: JobTable) -> None:
    lose(jobs, "muxer")
    say(jobs, "enqueue", "a", streamed=True)
    assert jobs.handle({"op": "get", "id": "a"})["state"] == "queued"
    jobs.handle({"op": "worker_back", "model": "muxer"})
    assert jobs.handle({"op": "get", "id": "a"})["state"] == "running"
