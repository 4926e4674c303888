"""The DiT's three operations: what each needs, and that one session's fault is its own."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from minimax_h3.core.config import StageConfig
from minimax_h3.core.errors import (
    CheckpointError,
    H3Error,
    InvalidRequestError,
    NotAvailableError,
    RemoteStageError,
    UnknownSessionError,
)
from minimax_h3.core.plan import Plan, build_plan
from minimax_h3.core.request import GenerationRequest
from minimax_h3.denoise.session import DenoiseSession
from minimax_h3.stages.base import BatchStage, StageContext, StageRequest, text_tensor
from minimax_h3.stages.dit import AbsentDit, DitStage, Ref2vaDitStage
from minimax_h3.weights.manifest import identify
from minimax_h3.weights.payload import read_tensor

LOG = logging.getLogger("test")
TEXT_ROWS = 5


@pytest.fixture
def known() -> list[str]:
    return []


def load(
    checkpoint: Path,
    known: list[str],
    stage_class: type[DitStage] = DitStage,
    task_type: str = "fl2va",
) -> BatchStage:
    def jobs(model: str, inputs: dict, outputs: list[str]) -> dict:
        operation = json.loads(inputs["OP"][0])
        if operation["op"] == "orphans":
            orphans = [held for held in operation["sessions"] if held.startswith("orphan")]
            return {"ANSWER": text_tensor(json.dumps({"orphans": orphans}))}
        assert operation["op"] == "session_known"
        if operation["session_id"] == "jobs is away":
            raise RemoteStageError("not healthy")
        return {"ANSWER": text_tensor(json.dumps({"known": operation["session_id"] in known}))}

    config = StageConfig(checkpoint_dir=str(checkpoint), device="cpu", task_type=task_type)
    return stage_class.load(StageContext(config, Path("models") / stage_class.name, jobs, LOG))


@pytest.fixture
def stage(tiny_checkpoint: Path, known: list[str]) -> BatchStage:
    return load(tiny_checkpoint, known)


def plan() -> Plan:
    request = GenerationRequest.from_fields(
        {"prompt": "p", "width": 64, "height": 32, "num_inference_steps": 3}
    )
    return build_plan(
        request,
        job_id="j",
        alias="",
        text_rows=TEXT_ROWS,
        flow_shift=12.0,
        audio_flow_shift=3.0,
        received_at=0.0,
    )


def operation(op: str, session: str, **tensors: np.ndarray) -> StageRequest:
    names = {"OP": text_tensor(op)[None], "SESSION": text_tensor(session)[None]}
    return StageRequest(names | tensors)


def start(stage: DitStage, session: str, seed: int = 1, **changed: np.ndarray) -> dict | H3Error:
    width = stage._runtime.model.config.text_dim
    session_plan = json.dumps({"plan": json.loads(plan().to_json()), "seed": seed})
    tensors = {
        "SESSION_PLAN": text_tensor(session_plan)[None],
        "PROMPT_EMBEDS": np.ones((1, TEXT_ROWS, width), np.float32),
        "TEXT_TAGS": np.ones((1, TEXT_ROWS), np.int64),
        "CONDITION_ROWS": np.zeros((1, 0, 96), np.float32),
        "AUDIO_CONDITION_ROWS": np.zeros((1, 0, 32), np.float32),
    }
    (answer,) = stage.run_batch([operation("start", session, **(tensors | changed))])
    return answer


def step(session: str, index: int) -> StageRequest:
    return operation("step", session, STEP=np.full((1, 3), index, np.int32))


def run_step(stage: DitStage, session: str, index: int) -> dict | H3Error:
    while True:
        (answer,) = stage.run_batch([step(session, index)])
        if isinstance(answer, H3Error) or state(answer)["ready"]:
            return answer


def state(answer: dict) -> dict:
    return json.loads(answer["STATE"][0, 0])


def end(stage: DitStage, session: str, **tensors: np.ndarray) -> dict | H3Error:
    (answer,) = stage.run_batch([operation("end", session, **tensors)])
    return answer


WANTED = {"WANT_LATENTS": np.array([[True]])}


def test_a_session_from_start_to_end(stage: DitStage) -> None:
    assert state(start(stage, "s"))["ready"] is False
    first = state(run_step(stage, "s", 0))
    assert first["facts"]["attention"] == "sdpa"
    assert first["facts"]["row_ops"] == "reference"
    assert first["compute_s"] > 0
    assert "facts" in first
    assert not state(run_step(stage, "s", 1))["facts"]
    answer = end(stage, "s", **WANTED)
    assert answer["VIDEO_LATENTS"].shape == (1, 24, 37, 2, 4)
    assert answer["AUDIO_LATENTS"].shape == (1, 2, 32, 207)
    assert isinstance(end(stage, "s"), UnknownSessionError)


def test_merged_steps_equal_solo_steps(stage: DitStage) -> None:
    solo = []
    for seed in (1, 2):
        start(stage, f"solo{seed}", seed)
        for index in range(2):
            run_step(stage, f"solo{seed}", index)
        solo.append(end(stage, f"solo{seed}", **WANTED)["VIDEO_LATENTS"])
        start(stage, f"merged{seed}", seed)
    for index in range(2):
        pending = ["merged1", "merged2"]
        while pending:
            answers = stage.run_batch([step(session, index) for session in pending])
            pending = [
                session
                for session, answer in zip(pending, answers, strict=True)
                if not state(answer)["ready"]
            ]
    for seed, expected in zip((1, 2), solo, strict=True):
        merged = end(stage, f"merged{seed}", **WANTED)["VIDEO_LATENTS"]
        np.testing.assert_array_equal(merged, expected)
    assert not np.array_equal(*solo)


def test_a_dropped_session_computes_nothing(
    stage: DitStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(stage, "s")
    run_step(stage, "s", 0)
    monkeypatch.setattr(DenoiseSession, "latents", lambda self: pytest.fail("computed"))
    assert set(end(stage, "s")) == {"STATE"}
    assert len(stage._sessions) == 0


@pytest.mark.parametrize(
    ("request_of", "error", "named"),
    [
        (lambda: operation("restart", "s"), InvalidRequestError, "OP: 'restart'"),
        (lambda: operation("start", "s"), InvalidRequestError, "SESSION_PLAN, PROMPT_EMBEDS"),
        (lambda: operation("step", "s"), InvalidRequestError, "STEP: absent"),
        (lambda: step("nobody", 0), UnknownSessionError, "'nobody'"),
        (lambda: operation("end", "nobody"), UnknownSessionError, "'nobody'"),
        (lambda: step("good", 7), InvalidRequestError, "STEP: 7 is not legal; legal: 0"),
        (lambda: operation("end", "good", **WANTED), InvalidRequestError, "0 steps"),
        (lambda: step("broken", 0), InvalidRequestError, "PROMPT_EMBEDS: not finite"),
    ],
)
def test_faults_are_named_and_stay_alone(
    stage: DitStage,
    request_of: Callable[[], StageRequest],
    error: type[H3Error],
    named: str,
) -> None:
    start(stage, "good")
    width = stage._runtime.model.config.text_dim
    start(stage, "broken", PROMPT_EMBEDS=np.full((1, TEXT_ROWS, width), np.nan, np.float32))
    stage._sessions._entries["good"].future.result()
    stage._sessions._entries["broken"].future.exception()
    fault, neighbour = stage.run_batch([request_of(), step("good", 0)])
    assert isinstance(fault, error)
    assert named in str(fault)
    assert state(neighbour)["ready"] is True


def test_an_unexpected_fault_is_one_sessions_own(
    stage: DitStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(stage, "s")
    run_step(stage, "s", 0)
    monkeypatch.setattr(DenoiseSession, "step", lambda self, index: 1 / 0)
    (answer,) = stage.run_batch([step("s", 1)])
    assert type(answer) is H3Error
    assert str(answer) == "step failed: ZeroDivisionError; see the server log"


def test_sessions_that_nobody_knows_are_dropped_after_their_lease(
    stage: DitStage, known: list[str]
) -> None:
    stage._sessions._lease_s = 0.0
    known.append("owned")
    for session in ("owned", "lost", "jobs is away"):
        start(stage, session)
        stage._sessions._entries[session].future.result()
    start(stage, "next")
    assert set(stage._sessions._entries) == {"owned", "jobs is away", "next"}


@pytest.mark.parametrize("task_type", ["combined", "fl2va", "ref2va"])
@pytest.mark.parametrize("stage_class", [DitStage, Ref2vaDitStage])
def test_each_dit_holds_its_own_partition_or_nothing(
    tiny_checkpoint: Path, known: list[str], stage_class: type[DitStage], task_type: str
) -> None:
    stage = load(tiny_checkpoint, known, stage_class, task_type)
    partition = stage_class.partition
    if task_type in (partition, "combined"):
        assert isinstance(stage, stage_class)
        weights = stage._runtime.model.video_in.weight
        files = identify(tiny_checkpoint, partition).weights["transformer"]
        name = "video_patch_proj.weight"
        assert torch.equal(weights, read_tensor(files.file_of()[name], name))
        assert stage._runtime.weights_token == identify(tiny_checkpoint, partition).digest
    else:
        assert isinstance(stage, AbsentDit)


def test_a_dit_without_weights_refuses_everything_by_name(
    tiny_checkpoint: Path, known: list[str]
) -> None:
    stage = load(tiny_checkpoint, known, Ref2vaDitStage)
    answers = stage.run_batch([step("s", 0), operation("end", "s"), operation("start", "s")])
    assert [type(answer) for answer in answers] == [NotAvailableError] * 3
    assert str(answers[0]) == (
        "dit_ref2va: holds no weights, because task_type is 'fl2va'; "
        "legal: a server of another task_type"
    )


def test_a_partition_that_is_not_there_is_named(tiny_checkpoint: Path, known: list[str]) -> None:
    with pytest.raises(CheckpointError, match="holds partition FL2VA; task_type 'ref2va' needs"):
        load(tiny_checkpoint / "FL2VA", known, Ref2vaDitStage, "combined")
