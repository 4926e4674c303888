"""The shell around a stage: loading, one response per request, errors, cancellation, `jobs`."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from fakes import pb_utils

from minimax_h3.core.config import StageConfig
from minimax_h3.core.errors import CheckpointError, ConfigError, H3Error, InvalidRequestError
from minimax_h3.stages.base import StageContext, StageRequest, text_tensor
from minimax_h3.triton_io.adapter import StageModel, stage_model

PLAN = pb_utils.Tensor("PLAN", text_tensor('{"job_id": "job-7"}'))
LATENTS = pb_utils.Tensor("AUDIO_LATENTS", np.zeros((1, 2, 32, 3), np.float32))
GOOD = {"AUDIO": np.zeros((1, 2, 2400), np.float32), "AUDIO_DECODER_INFO": text_tensor("{}")}


class Single:
    """An audio decoder that does what the test says."""

    name = "audio_decoder"
    context: StageContext
    action: Callable[[StageRequest], dict] = staticmethod(lambda request: GOOD)

    @classmethod
    def load(cls, context: StageContext) -> "Single":
        cls.context = context
        return cls()

    def run(self, request: StageRequest) -> dict:
        return type(self).action(request)


class Batch:
    """A DiT that does what the test says."""

    name = "dit"
    action: Callable[[Sequence[StageRequest]], list] = staticmethod(
        lambda requests: [{"STATE": text_tensor("{}")[None]} for _ in requests]
    )

    @classmethod
    def load(cls, context: StageContext) -> "Batch":
        return cls()

    def run_batch(self, requests: Sequence[StageRequest]) -> list:
        return type(self).action(requests)


def arguments(model_name: str, parameters: dict | None = None, folder: str = "/m") -> dict:
    parameters = parameters if parameters is not None else StageConfig().parameters()
    config = {name: {"string_value": value} for name, value in parameters.items()}
    return {
        "model_name": model_name,
        "model_instance_name": f"{model_name}_0_0",
        "model_repository": folder,
        "model_config": json.dumps({"parameters": config}),
    }


def loaded(stage: type, model_name: str, action: Callable | None = None) -> StageModel:
    members = {} if action is None else {"action": staticmethod(action)}
    model = stage_model(type(stage.__name__, (stage,), members))()
    model.initialize(arguments(model_name))
    return model


def request(*tensors: pb_utils.Tensor, **kwargs: object) -> pb_utils.InferenceRequest:
    return pb_utils.InferenceRequest(inputs=tensors or (PLAN, LATENTS), **kwargs)


def dit_request(session: str, **kwargs: object) -> pb_utils.InferenceRequest:
    tensors = [
        pb_utils.Tensor(name, text_tensor(value)[None])
        for name, value in (("OP", "step"), ("SESSION", session))
    ]
    return request(*tensors, **kwargs)


@pytest.fixture(autouse=True)
def told() -> list[dict]:
    """Operations that `jobs` is told."""
    operations: list[dict] = []

    def answer(call: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        assert call.model_name == "jobs"
        operations.append(json.loads(call.inputs()[0].as_numpy()[0]))
        return pb_utils.InferenceResponse([pb_utils.Tensor("ANSWER", text_tensor("{}"))])

    pb_utils.Logger.lines.clear()
    pb_utils.serve_calls_with(answer)
    return operations


def logged(level: str) -> str:
    return "\n".join(text for at, text in pb_utils.Logger.lines if at == level)


def refusal(response: pb_utils.InferenceResponse) -> tuple[str, str]:
    assert response.has_error()
    return response.error().code().name, response.error().message()


def test_the_stage_gets_its_configuration_and_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    parameters = StageConfig(max_jobs=5).parameters()
    model = stage_model(Single)()
    model.initialize(arguments("audio_decoder", parameters, str(tmp_path / "link")))
    assert Single.context.config == StageConfig(max_jobs=5)
    assert Single.context.model_folder == tmp_path / "real"
    assert "audio_decoder_0_0" in logged("info")


def test_the_backends_own_parameters_are_not_ours() -> None:
    parameters = StageConfig().parameters() | {"EXECUTION_ENV_PATH": "/envs/x"}
    stage_model(Single)().initialize(arguments("audio_decoder", parameters))


def test_an_unknown_parameter_stops_the_load_and_is_logged() -> None:
    with pytest.raises(ConfigError, match="checkpoint: unknown parameter"):
        stage_model(Single)().initialize(arguments("audio_decoder", {"checkpoint": "x"}))
    assert "checkpoint: unknown parameter" in logged("error")


def test_a_load_error_is_logged_with_its_reason_and_raised() -> None:
    class Broken(Single):
        @classmethod
        def load(cls, context: StageContext) -> Single:
            raise CheckpointError("audio_vae/model.safetensors: tensor w is missing")

    with pytest.raises(CheckpointError):
        stage_model(Broken)().initialize(arguments("audio_decoder"))
    assert "cannot load: checkpoint: audio_vae/model.safetensors: tensor w is" in logged("error")
    assert "Traceback" not in logged("error")


def test_an_unexpected_load_error_is_logged_with_its_traceback() -> None:
    class Broken(Single):
        @classmethod
        def load(cls, context: StageContext) -> Single:
            raise KeyError("w")

    with pytest.raises(KeyError):
        stage_model(Broken)().initialize(arguments("audio_decoder"))
    assert "Traceback" in logged("error")


def test_an_answer_becomes_tensors(told: list[dict]) -> None:
    (response,) = loaded(Single, "audio_decoder").execute([request()])
    assert {tensor.name() for tensor in response.output_tensors()} == set(GOOD)
    assert told == [{"op": "left", "job_id": "job-7", "stage": "audio_decoder"}]


def test_the_stage_sees_request_id_and_cancellation() -> None:
    seen: list[StageRequest] = []

    def action(stage_request: StageRequest) -> dict:
        seen.append(stage_request)
        return GOOD

    loaded(Single, "audio_decoder", action).execute([request(request_id="mine")])
    assert seen[0].request_id == "mine"
    assert seen[0].is_cancelled() is False
    assert seen[0].text("PLAN") == '{"job_id": "job-7"}'


def test_a_users_error_keeps_code_and_message_and_ends_the_job(told: list[dict]) -> None:
    def action(stage_request: StageRequest) -> dict:
        raise InvalidRequestError("width: 3 is not legal; legal: multiples of 32")

    (response,) = loaded(Single, "audio_decoder", action).execute([request()])
    assert refusal(response) == ("INVALID_ARG", "width: 3 is not legal; legal: multiples of 32")
    assert told == [
        {
            "op": "fail",
            "job_id": "job-7",
            "stage": "audio_decoder",
            "kind": "invalid_request",
            "message": "width: 3 is not legal; legal: multiples of 32",
        }
    ]


def test_an_unexpected_error_is_short_for_the_caller_and_whole_in_the_log(
    told: list[dict],
) -> None:
    def action(stage_request: StageRequest) -> dict:
        raise ZeroDivisionError("a secret path")

    (response,) = loaded(Single, "audio_decoder", action).execute([request(request_id="mine")])
    code, message = refusal(response)
    assert code == "INTERNAL"
    assert message == "audio_decoder: unexpected ZeroDivisionError; see the server log"
    log = logged("error")
    assert "job job-7, request mine" in log
    assert "Traceback" in log
    assert "a secret path" in log
    assert told[0]["kind"] == "internal"


def test_a_stage_that_breaks_its_contract_is_our_fault(told: list[dict]) -> None:
    wrong = GOOD | {"AUDIO": np.zeros((1, 1, 2400), np.float32)}
    (response,) = loaded(Single, "audio_decoder", lambda _: wrong).execute([request()])
    assert refusal(response)[0] == "INTERNAL"
    assert "output AUDIO: shape [1, 1, 2400]" in logged("error")
    assert told[0]["op"] == "fail"


def test_a_request_that_is_cancelled_on_arrival_computes_nothing(told: list[dict]) -> None:
    ran: list[StageRequest] = []
    model = loaded(Single, "audio_decoder", ran.append)
    (response,) = model.execute([request(cancelled=True)])
    assert refusal(response)[0] == "CANCELLED"
    assert ran == []
    assert told[0]["kind"] == "cancelled"


def test_a_dead_jobs_model_breaks_nothing() -> None:
    def action(stage_request: StageRequest) -> dict:
        raise InvalidRequestError("width: no")

    model = loaded(Single, "audio_decoder", action)
    pb_utils.serve_calls_with(None)
    (response,) = model.execute([request()])
    assert refusal(response) == ("INVALID_ARG", "width: no")
    assert "job job-7: jobs was not told of its failure" in logged("warning")


def test_a_plan_that_is_not_json_is_no_job(told: list[dict]) -> None:
    def action(stage_request: StageRequest) -> dict:
        raise InvalidRequestError("PLAN: not JSON")

    broken = pb_utils.Tensor("PLAN", text_tensor("{"))
    (response,) = loaded(Single, "audio_decoder", action).execute([request(broken, LATENTS)])
    assert refusal(response)[1] == "PLAN: not JSON"
    assert told == []


def test_jobs_does_not_tell_itself(told: list[dict]) -> None:
    class Jobs(Single):
        name = "jobs"

    def action(stage_request: StageRequest) -> dict:
        raise InvalidRequestError("op: no")

    operation = pb_utils.Tensor("OP", text_tensor("{}"))
    (response,) = loaded(Jobs, "jobs", action).execute([request(operation)])
    assert refusal(response) == ("INVALID_ARG", "op: no")
    assert told == []


def test_one_bad_request_of_a_batch_leaves_the_others_alone() -> None:
    seen: list[list[str]] = []

    def action(requests: Sequence[StageRequest]) -> list[dict | H3Error]:
        seen.append([entry.text("SESSION") for entry in requests])
        return [
            InvalidRequestError(f"{entry.text('SESSION')}: refused")
            if entry.text("SESSION") == "bad"
            else {"STATE": text_tensor(entry.text("SESSION"))[None]}
            for entry in requests
        ]

    nameless = request(pb_utils.Tensor("OP", text_tensor("step")[None]))
    responses = loaded(Batch, "dit_fl2va", action).execute(
        [dit_request("a"), nameless, dit_request("bad"), dit_request("b")]
    )
    assert seen == [["a", "bad", "b"]]
    assert responses[0].output_tensors()[0].as_numpy().item() == b"a"
    assert refusal(responses[1]) == ("INVALID_ARG", "SESSION: missing; dit_fl2va requires it")
    assert refusal(responses[2]) == ("INVALID_ARG", "bad: refused")
    assert responses[3].output_tensors()[0].as_numpy().item() == b"b"


@pytest.mark.parametrize("answers", [[], [{}, {}, {}]])
def test_a_batch_with_a_wrong_number_of_answers_fails_as_a_whole(answers: list) -> None:
    model = loaded(Batch, "dit_fl2va", lambda _: answers)
    responses = model.execute([dit_request("a"), dit_request("b")])
    assert [refusal(response)[0] for response in responses] == ["INTERNAL"] * 2


def test_a_crash_of_a_batch_answers_every_request() -> None:
    def action(requests: Sequence[StageRequest]) -> list:
        raise MemoryError

    model = loaded(Batch, "dit_fl2va", action)
    responses = model.execute([dit_request("a"), dit_request("b")])
    assert [refusal(response)[0] for response in responses] == ["INTERNAL"] * 2


def test_a_batch_without_a_good_request_is_not_run() -> None:
    ran: list[Sequence[StageRequest]] = []
    model = loaded(Batch, "dit_fl2va", ran.append)
    (response,) = model.execute([request(pb_utils.Tensor("OP", text_tensor("step")[None]))])
    assert refusal(response)[0] == "INVALID_ARG"
    assert ran == []


def test_a_calling_model_gets_the_kind_in_front() -> None:
    model = loaded(Batch, "dit_fl2va", lambda _: [InvalidRequestError("no")])
    caller = {"wants_error_kind": "yes", "h3_worker_token": "plain-start"}
    (response,) = model.execute([dit_request("a", parameters=caller)])
    assert refusal(response) == ("INVALID_ARG", "[invalid_request] no")


def test_a_parameter_without_effect_is_refused_before_the_stage() -> None:
    ran: list[Sequence[StageRequest]] = []
    model = loaded(Batch, "dit_fl2va", ran.append)
    for name in ("NUM_FRAME", "seed", "h3_job_id"):
        (response,) = model.execute([dit_request("a", parameters={name: 5, "x-a": "b"})])
        code, message = refusal(response)
        assert code == "INVALID_ARG"
        assert message.startswith(f"{name}: ")
    assert ran == []
