"""Calls to other models: the error's class survives, though Triton forgets its code."""

import numpy as np
import pytest
from fakes import pb_utils

from minimax_h3.core import errors
from minimax_h3.stages.base import text_tensor
from minimax_h3.triton_io.bls import BlsCaller, decode_error, encode_error

REQUEST = {"OP": text_tensor("ping")}


def answer_with(response: pb_utils.InferenceResponse) -> list[pb_utils.InferenceRequest]:
    seen = []

    def answer(request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        seen.append(request)
        return response

    pb_utils.serve_calls_with(answer)
    return seen


def fail_with(text: str, code: str = "INTERNAL") -> None:
    error = pb_utils.TritonError(text, getattr(pb_utils.TritonError, code))
    answer_with(pb_utils.InferenceResponse(error=error))


def all_error_classes() -> list[type[errors.H3Error]]:
    return [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.H3Error)
    ]


def test_only_the_asked_outputs_come_back() -> None:
    tensors = [pb_utils.Tensor(name, np.ones(2, np.float32)) for name in ("A", "B")]
    seen = answer_with(pb_utils.InferenceResponse(tensors))
    answer = BlsCaller("token")("jobs", REQUEST, ["A", "LEFT_OUT"])
    assert list(answer) == ["A"]
    assert seen[0].model_name == "jobs"
    assert seen[0].requested_output_names() == ["A", "LEFT_OUT"]
    assert seen[0].inputs()[0].as_numpy()[0] == b"ping"


@pytest.mark.parametrize("error_class", all_error_classes())
def test_every_error_class_survives_a_call(error_class: type[errors.H3Error]) -> None:
    asking = pb_utils.InferenceRequest(parameters={"wants_error_kind": "yes"})
    text = encode_error(asking, error_class.kind, "width: 3 is not legal\nlegal: 32")
    restored = decode_error("dit_fl2va", text)
    # "internal" is a crash over there; here it is the failure of another stage.
    expected = errors.RemoteStageError if error_class is errors.H3Error else error_class
    assert type(restored) is expected
    assert str(restored) == "width: 3 is not legal\nlegal: 32"


def test_the_call_asks_for_the_kind_and_raises_it() -> None:
    def answer(request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        text = encode_error(request, "capacity", "full")
        return pb_utils.InferenceResponse(
            error=pb_utils.TritonError(text, pb_utils.TritonError.UNAVAILABLE)
        )

    pb_utils.serve_calls_with(answer)
    with pytest.raises(errors.CapacityError, match=r"^full$"):
        BlsCaller("token")("jobs", REQUEST, ["ANSWER"])


def test_a_client_never_sees_the_kind() -> None:
    assert encode_error(pb_utils.InferenceRequest(), "capacity", "full") == "full"


def test_the_servers_own_errors_name_the_model() -> None:
    fail_with("[request id: <id_unknown>] Stub process 'jobs_0_0' is not healthy.")
    with pytest.raises(
        errors.WorkerLostError,
        match=r"^the process of jobs died or hung; retry \(.* is not healthy",
    ):
        BlsCaller("token")("jobs", REQUEST, ["ANSWER"])


def test_a_stopping_server_is_worth_another_try_later() -> None:
    fail_with("Model dit_fl2va - Error when running inference: Server not ready")
    with pytest.raises(errors.CapacityError, match="the server is stopping"):
        BlsCaller("token")("dit_fl2va", REQUEST, ["STATE"])


@pytest.mark.parametrize(
    "text",
    [
        "Failed for execute the inference request. Model 'dit_fl2va' is not ready.",
        "Request for unknown model: 'dit_fl2va' has no available versions",
    ],
)
def test_a_model_between_two_processes_is_worth_another_try(text: str) -> None:
    fail_with(text)
    with pytest.raises(errors.CapacityError, match=r"dit_fl2va is being .*; retry after 5 s"):
        BlsCaller("token")("dit_fl2va", REQUEST, ["STATE"])


def test_a_call_that_cannot_be_made_is_a_remote_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: pb_utils.InferenceRequest) -> None:
        raise pb_utils.TritonModelException("no such model")

    monkeypatch.setattr(pb_utils.InferenceRequest, "exec", refuse)
    with pytest.raises(errors.RemoteStageError, match=r"^nowhere: no such model$"):
        BlsCaller("token")("nowhere", REQUEST, ["ANSWER"])
