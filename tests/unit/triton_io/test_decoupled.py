"""The decoupled adapter: responses, errors and what a stage may rely on."""

import json

import numpy as np
from fakes import pb_utils

pb_utils.install()

from minimax_h3.core.config import StageConfig  # noqa: E402
from minimax_h3.core.errors import CapacityError  # noqa: E402
from minimax_h3.stages.base import StageContext, StageRequest, text_tensor  # noqa: E402
from minimax_h3.triton_io.decoupled import streaming_model  # noqa: E402

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class Echo:
    """Keeps what it was given; answers as `action` says."""

    name = "minimax_h3_stream"
    action = staticmethod(lambda request, answers: None)
    opened: list[tuple] = []  # noqa: RUF012
    closed = 0

    @classmethod
    def load(cls, context: StageContext) -> "Echo":
        return cls()

    def open(self, request: StageRequest, answers) -> None:
        Echo.opened.append((request, answers))
        self.action(request, answers)

    def close(self) -> None:
        Echo.closed += 1


def loaded(action=lambda request, answers: None):
    stage = type("Acting", (Echo,), {"action": staticmethod(action)})
    Echo.opened.clear()
    model = streaming_model(stage)()
    parameters = StageConfig().parameters().items()
    config = {name: {"string_value": value} for name, value in parameters}
    model.initialize(
        {
            "model_name": "minimax_h3_stream",
            "model_instance_name": "minimax_h3_stream_0_0",
            "model_repository": "/m",
            "model_config": json.dumps({"parameters": config}),
        }
    )
    return model


def request(**options: object) -> pb_utils.InferenceRequest:
    tensors = [pb_utils.Tensor("PROMPT", text_tensor("p"))]
    return pb_utils.InferenceRequest("minimax_h3_stream", (), tensors, "mine", **options)


def test_responses_arrive_and_nothing_follows_the_last() -> None:
    def action(given: StageRequest, answers) -> None:
        answers.send({"EVENT": text_tensor("{}")})
        answers.send({"EVENT": text_tensor("{}"), "MP4": text_tensor(b"x")}, last=True)
        answers.send({"EVENT": text_tensor("late")})
        answers.fail(CapacityError("late"))

    asked = request()
    assert loaded(action).execute([asked]) is None
    sent = asked.get_response_sender().sent
    assert [flags for _, flags in sent] == [0, FINAL]
    assert [tensor.name() for tensor in sent[-1][0].output_tensors()] == ["EVENT", "MP4"]


def test_triton_is_not_asked_about_an_answered_request() -> None:
    model = loaded()
    model.execute([request(cancelled=True)])
    ((_, answers),) = Echo.opened
    assert answers.is_cancelled() is True
    answers.fail(CapacityError("full"))
    assert answers.is_cancelled() is False


def test_a_refusal_is_the_only_response_with_code_and_kind() -> None:
    def refuse(given: StageRequest, answers) -> None:
        raise CapacityError("full; retry after 5 s")

    good, bad = request(), request()
    loaded(refuse).execute([bad])
    ((response, flags),) = bad.get_response_sender().sent
    assert flags == FINAL
    assert response.error().code() is pb_utils.TritonError.UNAVAILABLE
    assert response.error().message() == "[capacity] full; retry after 5 s"
    loaded().execute([good])
    assert good.get_response_sender().sent == []


def test_a_crash_says_nothing_about_the_inside() -> None:
    def crash(given: StageRequest, answers) -> None:
        raise RuntimeError("a secret")

    asked = request()
    loaded(crash).execute([asked])
    ((response, _),) = asked.get_response_sender().sent
    assert "secret" not in response.error().message()
    assert response.error().message().startswith("[internal] minimax_h3_stream: unexpected")


def test_an_output_that_breaks_the_contract_is_named() -> None:
    def wrong(given: StageRequest, answers) -> None:
        answers.send({"EVENT": np.zeros((2, 2), np.float32)})

    asked = request()
    loaded(wrong).execute([asked])
    ((response, _),) = asked.get_response_sender().sent
    assert "unexpected TypeError" in response.error().message()


def test_cancellation_trust_and_close() -> None:
    model = loaded()
    model.execute([request(parameters={"h3_worker_token": "plain-start"})])
    model.execute([request(parameters={"x-trace": "a"})])
    guessing = request(parameters={"h3_worker_token": "guess"})
    model.execute([guessing])
    ((refused, _),) = guessing.get_response_sender().sent
    told = refused.error().message()
    assert told == "[invalid_request] h3_worker_token: not of this server; legal: absent"
    (trusted, answers), (other, _) = Echo.opened
    assert (trusted.trusted, other.trusted) == (True, False)
    assert answers.is_cancelled() is False
    before = Echo.closed
    model.finalize()
    assert Echo.closed == before + 1
