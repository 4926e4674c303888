"""Boundaries of a stage: stopped by `jobs`, stopped by the deadline, and `jobs` away."""

import json
import logging
import time
from dataclasses import replace

import pytest

from minimax_h3.core.errors import (
    CancelledError,
    CapacityError,
    DeadlineExceededError,
    InvalidRequestError,
    RemoteStageError,
    WorkerLostError,
)
from minimax_h3.core.plan import Plan, build_plan
from minimax_h3.core.request import GenerationRequest
from minimax_h3.stages.base import StageRequest, text_tensor
from minimax_h3.stages.job_client import REFUSALS, JobClient
from minimax_h3.stages.preprocess import check_request_id

LOG = logging.getLogger("test")


def plan(**options: object) -> Plan:
    fields = {"prompt": "p", "width": 64, "height": 64} | options
    return build_plan(
        GenerationRequest.from_fields(fields),
        job_id="j",
        alias="",
        text_rows=3,
        flow_shift=12.0,
        audio_flow_shift=3.0,
        received_at=time.time(),
    )


def client(answer: object, told: list[dict] | None = None) -> JobClient:
    def call(model: str, inputs: dict, outputs: list, **options: object) -> dict:
        operation = json.loads(inputs["OP"][0])
        if told is not None:
            told.append(operation)
        if isinstance(answer, Exception):
            raise answer
        return {"ANSWER": text_tensor(json.dumps(answer))}

    return JobClient(call, LOG)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("cancelled", CancelledError),
        ("worker_lost", WorkerLostError),
        ("what is this", RemoteStageError),
    ],
)
def test_a_stopped_job_ends_with_the_kind_that_jobs_named(kind: str, error: type) -> None:
    stopping = client({"cancel": True, "kind": kind, "message": "because"})
    with pytest.raises(error, match="because; stopped in denoiser at 3/9"):
        stopping.progress(plan(), "denoiser", step=3, num_steps=9)
    with pytest.raises(error, match="because; stopped in audio_decoder"):
        stopping.check_cancel(plan(), "audio_decoder")


def test_a_deadline_needs_no_word_of_jobs() -> None:
    late = replace(plan(deadline_s=2.0), received_at=time.time() - 3)
    for away in ({}, RemoteStageError("gone")):
        with pytest.raises(DeadlineExceededError, match=r"deadline_s: 2 s have passed; job j"):
            client(away).progress(late, "muxer")
        with pytest.raises(DeadlineExceededError):
            client(away).check_cancel(late, "audio_decoder")
    client({}).progress(plan(deadline_s=60.0), "muxer")


def test_progress_says_what_a_reborn_table_needs() -> None:
    told: list[dict] = []
    client({}, told).progress(plan(priority="high", client="me"), "denoiser", step=1, num_steps=9)
    (operation,) = told
    assert (operation["num_steps"], operation["stage_steps"], operation["step"]) == (49, 9, 1)
    assert (operation["priority"], operation["client"]) == ("high", "me")
    assert operation["rows"] == plan().packed_rows


def test_only_named_refusals_reach_the_caller() -> None:
    assert client(RemoteStageError("gone")).say({"op": "register"}, refusals=REFUSALS) == {}
    with pytest.raises(CapacityError):
        client(CapacityError("full")).say({"op": "register"}, refusals=REFUSALS)


def test_a_long_request_id_is_refused_and_not_repeated() -> None:
    check_request_id(StageRequest({}, "i" * 128))
    with pytest.raises(InvalidRequestError, match=r"^request_id: 5,000 .* legal: up to 128$"):
        check_request_id(StageRequest({}, "i" * 5000))
