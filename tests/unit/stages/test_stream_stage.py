"""The streaming stage against a real job table and an ensemble that does what the test says."""

import base64
import json
import logging
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from minimax_h3.control.job_table import JobTable
from minimax_h3.control.registry import Limits
from minimax_h3.core.config import StageConfig
from minimax_h3.core.errors import (
    CancelledError,
    CapacityError,
    DeadlineRefusedError,
    H3Error,
    InvalidRequestError,
    RemoteStageError,
    WorkerLostError,
)
from minimax_h3.stages import stream as stream_module
from minimax_h3.stages.base import StageRequest, text_tensor
from minimax_h3.stages.job_client import JobClient
from minimax_h3.stages.stream import StreamStage
from minimax_h3.stages.stream_events import error_event

LOG = logging.getLogger("test")


class Answers:
    """Keeps every response of one stream."""

    def __init__(self) -> None:
        self.events: list[dict] = []
        self.tensors: dict = {}
        self.error: Exception | None = None
        self.ended = threading.Event()
        self.gone = False

    def send(self, tensors: dict, *, last: bool = False) -> None:
        assert not self.ended.is_set()
        self.events.append(json.loads(tensors["EVENT"][0]))
        if last:
            self.tensors = tensors
            self.ended.set()

    def fail(self, error: Exception) -> None:
        assert not self.ended.is_set()
        self.error = error
        self.ended.set()

    def is_cancelled(self) -> bool:
        return self.gone

    def named(self, name: str) -> list[dict]:
        return [event for event in self.events if event["event"] == name]


class Server:
    """`jobs` as it is; the ensemble is `make`."""

    def __init__(self, max_jobs: int = 2) -> None:
        self.table = JobTable(Limits(1, max_jobs, 8, 60.0))
        self.lock = threading.Lock()
        self.jobs_alive = True
        self.make: Callable[[dict], None] = lambda facts: None
        self.seen: list[dict] = []

    def __call__(self, model: str, inputs: dict, outputs: list, **options: object) -> dict:
        if model == "jobs":
            if not self.jobs_alive:
                raise RemoteStageError("Stub process 'jobs_0_0' is not healthy.")
            with self.lock:
                answer = self.table.handle(json.loads(inputs["OP"][0]))
            return {"ANSWER": text_tensor(json.dumps(answer))}
        assert model == "minimax_h3"
        facts = {
            "job_id": options["parameters"]["h3_job_id"],  # type: ignore[index]
            "task": "t2va",
            "num_steps": 4,
            "num_clips": 1,
            "inputs": sorted(inputs),
            "request_id": options["request_id"],
        }
        self.seen.append(facts)
        self.make(facts)
        self.say({**facts, "op": "finish"})
        return {"MP4": text_tensor(b"\x00ftyp\xff"), "METADATA": text_tensor('{"n": 1}')}

    def say(self, operation: dict) -> dict:
        with self.lock:
            return self.table.handle(operation)


@pytest.fixture
def server() -> Server:
    return Server()


def stage(server: Server, **config: object) -> StreamStage:
    values = {"max_jobs": 2, "running_jobs": 1, "stream_jobs": 2} | config
    return StreamStage(StageConfig(**values), server, JobClient(server, LOG), LOG)


def request(result_as: str | None = None, request_id: str = "mine", **options: object):
    tensors = {"PROMPT": text_tensor("p"), "OPTIONS": text_tensor(json.dumps(options))}
    tensors |= {"WIDTH": np.array([64], np.int64), "HEIGHT": np.array([64], np.int64)}
    tensors |= {} if result_as is None else {"RESULT_AS": text_tensor(result_as)}
    return StageRequest(tensors, request_id)


def opened(streams: StreamStage, *args: object, **options: object) -> Answers:
    answers = Answers()
    streams.open(request(*args, **options), answers)
    return answers


def until(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + 5
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_steps_become_events_in_order_and_the_result_is_last(server: Server) -> None:
    def make(facts: dict) -> None:
        for step in range(4):
            operation = {"op": "progress", "stage": "denoiser", "step": step, "stage_steps": 4}
            server.say({**facts, **operation})

    server.make = make
    answers = opened(stage(server))
    assert answers.ended.wait(5)
    assert answers.events[0]["event"] == "accepted"
    steps = [event for event in answers.named("progress") if event["stage"] == "denoiser"]
    assert [(event["step"], event["num_steps"]) for event in steps] == [(k, 4) for k in range(4)]
    assert answers.events[-1]["event"] == "result"
    assert answers.tensors["MP4"][0] == b"\x00ftyp\xff"
    assert server.seen[0]["inputs"] == ["HEIGHT", "OPTIONS", "PROMPT", "WIDTH"]
    assert server.seen[0]["request_id"] == "mine"


@pytest.mark.parametrize("form", ["base64", "handle"])
def test_forms_that_are_legal_json(server: Server, form: str) -> None:
    answers = opened(stage(server), form)
    assert answers.ended.wait(5)
    told = answers.events[-1]
    assert (told["form"], told["bytes"], told["handle"]) == (form, [6], server.seen[0]["job_id"])
    files = answers.tensors.get("MP4")
    assert (files is None) if form == "handle" else base64.b64decode(files[0]) == b"\x00ftyp\xff"


@pytest.mark.parametrize(
    ("result_as", "options", "named"),
    [
        ("gif", {}, "RESULT_AS: 'gif'"),
        (None, {"return_frames": True}, "return_frames: true"),
        (None, {"refrences": []}, "refrences: unknown"),
        (None, {"priority": "urgent"}, "priority: 'urgent'"),
        (None, {"deadline_s": 0}, "deadline_s: 0"),
    ],
)
def test_a_wrong_request_never_waits(server: Server, result_as, options, named: str) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        opened(stage(server), result_as, **options)


def test_a_long_request_id_never_waits(server: Server) -> None:
    with pytest.raises(InvalidRequestError, match=r"^request_id: 5,000 "):
        opened(stage(server), request_id="i" * 5000)


def test_a_handle_needs_a_server_that_keeps_results(server: Server) -> None:
    with pytest.raises(InvalidRequestError, match="keeps no results"):
        opened(stage(server, results_bytes=0), "handle")


def test_excess_streams_are_refused_and_those_who_wait_enter_in_turn(server: Server) -> None:
    release = threading.Event()
    server.make = lambda facts: release.wait(5) and None
    streams = stage(server)
    answers = [opened(streams, request_id=f"r{index}") for index in range(4)]
    until(lambda: answers[3].named("position"))
    assert answers[2].named("position")[0]["position"] == 1
    assert answers[3].named("position")[0]["position"] == 2
    assert len(server.seen) == 2
    with pytest.raises(CapacityError, match="4 streams run or wait.*retry after"):  # noqa: RUF043
        opened(streams)
    release.set()
    for one in answers:
        assert one.ended.wait(5)
        assert one.error is None


def test_an_id_in_use_is_the_only_response(server: Server) -> None:
    release = threading.Event()
    server.make = lambda facts: release.wait(5) and None
    streams = stage(server)
    first = opened(streams)
    until(lambda: server.seen)
    second = opened(streams)
    assert second.ended.wait(5)
    assert second.events == []
    assert "'mine' is in use" in str(second.error)
    release.set()
    assert first.ended.wait(5)


def test_a_client_that_leaves_cancels_its_job(server: Server) -> None:
    def make(facts: dict) -> None:
        until(lambda: server.say({**facts, "op": "touch", "stage": "denoiser"})["cancel"])
        server.say({"op": "fail", **facts, "stage": "denoiser", "kind": "cancelled"})
        raise CancelledError("stopped")

    server.make = make
    answers = opened(stage(server))
    until(lambda: server.seen)
    answers.gone = True
    assert answers.ended.wait(5)
    assert isinstance(answers.error, CancelledError)
    assert server.say({"op": "get", "id": "mine"})["state"] == "cancelled"


def test_a_client_that_leaves_the_queue_never_runs(server: Server) -> None:
    release = threading.Event()
    server.make = lambda facts: release.wait(5) and None
    streams = stage(server, max_jobs=1)
    server.table = JobTable(Limits(1, 1, 8, 60.0))
    first, second = opened(streams, request_id="1"), opened(streams, request_id="2")
    until(lambda: second.named("position"))
    second.gone = True
    assert second.ended.wait(5)
    release.set()
    assert first.ended.wait(5)
    assert len(server.seen) == 1


def test_a_client_that_leaves_before_its_ensemble_runs_leaves_no_job(server: Server) -> None:
    answers = Answers()
    answers.gone = True
    stage(server).open(request(), answers)
    assert answers.ended.wait(5)
    assert server.say({"op": "get", "id": "mine"})["state"] == "cancelled"
    assert server.say({"op": "ping"})["active"] == 0
    assert server.seen == []


def test_the_deadline_passes_in_the_queue(server: Server) -> None:
    release = threading.Event()
    server.make = lambda facts: release.wait(5) and None
    streams = stage(server, max_jobs=1)
    server.table = JobTable(Limits(1, 1, 8, 60.0))
    first = opened(streams, request_id="1")
    until(lambda: server.seen)
    second = opened(streams, request_id="2", deadline_s=0.1)
    assert second.ended.wait(5)
    assert second.named("error")[0]["kind"] == "deadline_exceeded"
    assert server.say({"op": "get", "id": "2"})["state"] == "failed"
    release.set()
    assert first.ended.wait(5)


def test_an_error_is_an_event_with_its_kind_and_frees_the_place(server: Server) -> None:
    def explode(facts: dict) -> None:
        raise RemoteStageError("muxer: Stub process 'muxer_0_0' is not healthy.")

    server.make = explode
    answers = opened(stage(server))
    assert answers.ended.wait(5)
    told = answers.events[-1]
    assert (told["event"], told["kind"], told["code"]) == ("error", "remote_stage", "INTERNAL")
    assert server.say({"op": "ping"})["active"] == 0


@pytest.mark.parametrize(
    ("error", "code", "retry"),
    [
        (InvalidRequestError("width: 3"), "INVALID_ARGUMENT", False),
        (WorkerLostError("muxer died"), "UNAVAILABLE", True),
        (DeadlineRefusedError("too late"), "UNAVAILABLE", True),
    ],
)
def test_the_code_of_an_error_is_the_word_of_grpc(error: H3Error, code: str, retry: bool) -> None:
    told = error_event("j", error)
    assert told["code"] == code
    assert ("retry_after_s" in told) is retry


def test_a_lost_worker_ends_the_stream_although_its_call_hangs(server: Server) -> None:
    release = threading.Event()
    server.make = lambda facts: release.wait(5) and None
    answers = opened(stage(server))
    until(lambda: server.seen)
    server.say({"op": "worker_lost", "model": "text_encoder"})
    assert answers.ended.wait(1)
    assert isinstance(answers.error, WorkerLostError)
    release.set()


def test_streams_go_on_without_jobs_and_hear_that_the_server_lives(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "HEARTBEAT_S", 0.05)
    server.jobs_alive = False
    release = threading.Event()

    def make(facts: dict) -> None:
        release.wait(5)
        raise H3Error("over")

    server.make = make
    answers = opened(stage(server))
    until(lambda: len(answers.named("heartbeat")) >= 2)
    release.set()
    assert answers.ended.wait(5)


def test_one_bad_round_does_not_silence_the_others(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams, calls = stage(server), []
    attend = streams._attend

    def first_fails(open_streams: list) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("planted")
        attend(open_streams)

    monkeypatch.setattr(streams, "_attend", first_fails)
    answers = opened(streams)
    assert answers.ended.wait(5)
    assert answers.error is None
