"""The denoising loop against a scripted server: turns, steps, cancel, and what is sent `end`."""

import json
import logging
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from minimax_h3.control.job_table import JobTable
from minimax_h3.control.registry import Limits
from minimax_h3.core.errors import (
    BackendUnavailableError,
    CancelledError,
    H3Error,
    RemoteStageError,
    UnknownSessionError,
)
from minimax_h3.core.plan import build_plan
from minimax_h3.core.request import GenerationRequest
from minimax_h3.stages.base import StageRequest, Tensors, text_tensor
from minimax_h3.stages.denoiser import DenoiserStage
from minimax_h3.stages.job_client import AWAY_S, JobClient

LOG = logging.getLogger("test")
Answer = dict[str, NDArray[np.generic]]


class Server:
    """Answers `jobs` from a real table and the DiT from a script; records what the DiT was sent."""

    def __init__(self) -> None:
        self.table = JobTable(Limits(2, 8, 8, 60.0))
        self.sent: list[tuple[str, str]] = []
        self.keys: set[int] = set()
        self.jobs_alive = True
        self.jobs_calls = 0
        self.on_step: Callable[[int], None] = lambda step: None
        self.unready = 0

    def __call__(self, model: str, inputs: Tensors, outputs: Sequence[str]) -> Answer:
        first = np.asarray(inputs["OP"]).reshape(-1)[0]
        if model == "jobs":
            self.jobs_calls += 1
            if not self.jobs_alive:
                raise RemoteStageError("Stub process 'jobs_0_0' is not healthy.")
            return {"ANSWER": text_tensor(json.dumps(self.table.handle(json.loads(first))))}
        assert model == "dit_fl2va"
        return self.dit(first.decode(), inputs)

    def dit(self, op: str, inputs: Tensors) -> Answer:
        self.sent.append((op, np.asarray(inputs["SESSION"]).reshape(-1)[0].decode()))
        if op == "step":
            step = np.asarray(inputs["STEP"])
            self.keys.add(step.shape[1])
            self.on_step(int(step[0, 0]))
            if self.unready:
                self.unready -= 1
                return {"STATE": text_tensor('{"ready": false}')[None]}
        state = text_tensor('{"ready": true, "compute_s": 0.001, "facts": {"attention": "sdpa"}}')
        seed = len({session for _, session in self.sent})
        return {
            "STATE": state[None],
            "VIDEO_LATENTS": np.full((1, 24, 2, 4, 4), seed, np.float32),
            "AUDIO_LATENTS": np.full((1, 2, 32, 9), seed, np.float32),
        }

    def ops(self) -> list[str]:
        return [op for op, _ in self.sent]


def request(job_id: str = "j", **fields: object) -> StageRequest:
    generation = GenerationRequest.from_fields(
        {"prompt": "p", "width": 64, "height": 64, "num_inference_steps": 5} | fields
    )
    plan = build_plan(
        generation,
        job_id=job_id,
        alias="",
        text_rows=3,
        flow_shift=12.0,
        audio_flow_shift=3.0,
        received_at=0.0,
    )
    return StageRequest(
        {
            "PLAN": text_tensor(plan.to_json()),
            "TASK": text_tensor("t2va"),
            "PROMPT_EMBEDS": np.zeros((1, 3, 8), np.float32),
            "TEXT_TAGS": np.ones((1, 3), np.int64),
            "CONDITION_ROWS": np.zeros((1, 0, 96), np.float32),
            "AUDIO_CONDITION_ROWS": np.zeros((1, 0, 32), np.float32),
        }
    )


def stage(server: Server) -> DenoiserStage:
    return DenoiserStage(server, JobClient(server, LOG))


def state_of(server: Server, job_id: str = "j") -> dict[str, object]:
    return server.table.handle({"op": "get", "id": job_id})


def test_n_points_are_n_minus_one_steps_and_two_calls_each() -> None:
    server = Server()
    answer = stage(server).run(request())
    assert server.ops() == ["start", "step", "step", "step", "step", "end"]
    facts = json.loads(answer["DENOISER_INFO"][0])
    assert facts["attention"] == "sdpa"
    # turn, session and release once; one progress call a step
    assert server.jobs_calls == 3 + 4
    assert answer["VIDEO_LATENTS"].shape == (1, 24, 2, 4, 4)
    assert answer["AUDIO_LATENTS"].shape == (1, 2, 32, 9)


def test_every_clip_has_a_session_of_its_own() -> None:
    server = Server()
    answer = stage(server).run(request(num_outputs=3))
    sessions = [session for op, session in server.sent if op == "end"]
    assert len(set(sessions)) == 3
    assert answer["VIDEO_LATENTS"][:, 0, 0, 0, 0].tolist() == [1.0, 2.0, 3.0]


def test_cancel_costs_no_further_step_and_ends_the_session() -> None:
    server = Server()

    def cancel_in_second_step(step: int) -> None:
        if step == 1:
            server.table.handle({"op": "cancel", "id": "j"})

    server.on_step = cancel_in_second_step
    with pytest.raises(CancelledError, match="job j was cancelled; stopped in denoiser at 2/4"):
        stage(server).run(request())
    assert server.ops() == ["start", "step", "step", "end"]
    assert state_of(server)["position"] == 0


@pytest.mark.parametrize("op", ["step", "end"])
def test_a_session_ended_from_outside_tells_why(op: str) -> None:
    """Whoever ends a job drops its session too: the loop that finds it gone asks `jobs` first."""
    server = Server()
    plain = server.dit

    def gone(asked: str, inputs: Tensors) -> Answer:
        if asked == op:
            server.table.handle({"op": "cancel", "id": "j"})
            raise UnknownSessionError("SESSION: 's' is not held here")
        return plain(asked, inputs)

    server.dit = gone  # type: ignore[method-assign]
    with pytest.raises(CancelledError, match="job j was cancelled; stopped in denoiser"):
        stage(server).run(request())


def test_a_session_that_is_gone_without_a_reason_stays_an_error() -> None:
    server = Server()

    def gone(step: int) -> None:
        raise UnknownSessionError("SESSION: 's' is not held here")

    server.on_step = gone
    with pytest.raises(UnknownSessionError, match="is not held here"):
        stage(server).run(request())


def test_cancel_while_waiting_starts_nothing() -> None:
    server = Server()
    for name in ("a", "b"):  # both turns are taken
        server.table.handle(
            {"op": "turn", "job_id": name, "task": "t2va", "num_steps": 4, "num_clips": 1}
        )
    server.table.handle(
        {"op": "register", "job_id": "j", "task": "t2va", "num_steps": 4, "num_clips": 1}
    )
    server.table.handle({"op": "cancel", "id": "j"})
    with pytest.raises(CancelledError, match="was cancelled; stopped in the queue"):
        stage(server).run(request())
    assert server.sent == []


def test_a_failed_step_still_ends_the_session_and_the_turn() -> None:
    server = Server()

    def explode(step: int) -> None:
        if step == 2:
            raise BackendUnavailableError("out of memory")

    server.on_step = explode
    with pytest.raises(BackendUnavailableError, match="out of memory"):
        stage(server).run(request())
    assert server.ops()[-1] == "end"
    answer = server.table.handle(
        {"op": "turn", "job_id": "other", "task": "t2va", "num_steps": 4, "num_clips": 1}
    )
    assert answer["go"] is True


def test_the_first_error_survives_a_dit_that_cannot_end() -> None:
    server = Server()

    def gone(step: int) -> None:
        del step
        server.dit = lambda op, inputs: _raise(RemoteStageError(f"{op} after death"))  # type: ignore[method-assign]
        raise RemoteStageError("the stub died")

    server.on_step = gone
    with pytest.raises(RemoteStageError, match="the stub died"):
        stage(server).run(request())


def _raise(error: H3Error) -> Answer:
    raise error


def test_a_job_goes_on_when_jobs_dies() -> None:
    server = Server()

    def kill_jobs(step: int) -> None:
        server.jobs_alive = step == 0

    server.on_step = kill_jobs
    stage(server).run(request())
    assert server.ops().count("step") == 4


def test_a_dead_jobs_model_is_not_asked_again_at_once() -> None:
    server, now = Server(), [0.0]
    server.jobs_alive = False
    client = JobClient(server, LOG, clock=lambda: now[0])
    denoiser = DenoiserStage(server, client)
    denoiser.run(request())
    assert server.jobs_calls == 1
    server.jobs_alive, now[0] = True, AWAY_S + 0.1
    denoiser.run(request())
    assert state_of(server)["job_id"] == "j"  # known again


def test_an_unready_session_is_asked_again_for_the_same_step() -> None:
    server, steps = Server(), []
    server.unready = 3
    server.on_step = steps.append
    stage(server).run(request())
    assert steps == [0, 0, 0, 0, 1, 2, 3]


def test_jobs_that_run_together_never_share_a_merge_key() -> None:
    server = Server()
    inner = stage(server)

    def other_job(step: int) -> None:
        server.on_step = lambda step: None
        if step == 0:
            inner.run(request("k"))

    server.on_step = other_job
    stage(server).run(request())
    assert len(server.keys) == 2
