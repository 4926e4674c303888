"""Request parameters, by every way in: which are taken, and how others are refused."""

import json
import urllib.error
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from h3_client.client import H3Client

pytestmark = pytest.mark.quiet  # for the server that quiet tests share
SMALL = {"WIDTH": 64, "HEIGHT": 64, "NUM_INFERENCE_STEPS": 3}
UNKNOWN = [
    ("NUM_FRAME", 100, "100, which is not known; nearest: the field num_frames, the tensor"),
    ("guidance_scale", "7", "'7', which has no effect"),
    ("seed", 7, "7, which no field is; legal: the tensor SEED"),
    ("h3_job_id", "a", "not of this server; legal: absent"),
]


def grpc_tensors() -> list[grpcclient.InferInput]:
    prompt = grpcclient.InferInput("PROMPT", [1], "BYTES")
    prompt.set_data_from_numpy(np.array([b"p"], dtype=object))
    tensors = [prompt]
    for name, value in SMALL.items():
        tensors.append(grpcclient.InferInput(name, [1], "INT64"))
        tensors[-1].set_data_from_numpy(np.array([value], dtype=np.int64))
    return tensors


def http_body(parameters: dict[str, object]) -> dict[str, object]:
    inputs = [{"name": "PROMPT", "datatype": "BYTES", "shape": [1], "data": ["p"]}]
    for name, value in SMALL.items():
        inputs.append({"name": name, "datatype": "INT64", "shape": [1], "data": [value]})
    return {"inputs": inputs, "outputs": [{"name": "METADATA"}], "parameters": parameters}


def post(server, path: str, body: dict[str, object]) -> tuple[int, str]:
    request = urllib.request.Request(f"http://{server.http_url}/v2/models/{path}")
    try:
        with urllib.request.urlopen(request, json.dumps(body).encode()) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


@pytest.mark.parametrize(("name", "value", "told"), UNKNOWN)
def test_one_without_effect_is_refused_on_every_way(server, name, value, told) -> None:
    before = server.inference_count("text_encoder")
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        with pytest.raises(InferenceServerException) as refused:
            client.infer("minimax_h3", grpc_tensors(), parameters={name: value})
        assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"
        answers = [refused.value.message(), streamed(client, {name: value})]
    flat = {"PROMPT": "p", **SMALL, "RESULT_AS": "handle", name: value}
    for path, body in (
        ("minimax_h3/infer", http_body({name: value})),
        ("minimax_h3_stream/generate", flat),
        ("minimax_h3_stream/generate_stream", flat),
        ("minimax_h3_stream/generate_stream", {"PROMPT": "p", "parameters": {name: value}}),
    ):
        status, text = post(server, path, body)
        assert status == 400, (path, text)
        answers.append(json.loads(text.removeprefix("data: "))["error"])
    for answer in answers:
        assert f"{name}: " in answer
        assert told in answer
    assert server.inference_count("text_encoder") == before


def streamed(client: grpcclient.InferenceServerClient, parameters: dict[str, object]) -> str:
    """The error that ends a gRPC stream."""
    errors: list[str] = []
    client.start_stream(lambda result, error: errors.append(str(error)))
    client.async_stream_infer("minimax_h3_stream", grpc_tensors(), parameters=parameters)
    client.stop_stream()
    (error,) = errors
    return error


def test_what_triton_reads_and_headers_are_taken(server) -> None:
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        answer = client.infer(
            "minimax_h3",
            grpc_tensors(),
            outputs=[grpcclient.InferRequestedOutput("MP4")],
            sequence_id=3,
            sequence_start=True,
            sequence_end=True,
            priority=1,
            timeout=60_000_000,
            headers={"x-request-id": "a", "authorization": "b"},
        )
        assert answer.as_numpy("MP4")[0][4:8] == b"ftyp"
    taken = {"sequence_id": 3, "sequence_start": True, "sequence_end": True, "priority": 1}
    taken |= {"timeout": 60_000_000, "binary_data_output": False, "x-gateway": "a"}
    status, text = post(server, "minimax_h3/infer", http_body(taken))
    assert status == 200, text


def test_every_step_of_the_ensemble_sees_the_parameters(server) -> None:
    """So a step that was asked directly refuses them too, and `preprocess` does so for all."""
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        for model in ("preprocess", "minimax_h3"):
            with pytest.raises(InferenceServerException, match=r"NUM_FRAME: sent as a request"):
                client.infer(model, grpc_tensors(), parameters={"NUM_FRAME": 100})
    assert H3Client(server.grpc_url).ping()["active"] == 0


@pytest.mark.parametrize("route", ["minimax_h3/generate", "minimax_h3_stream/generate_stream"])
@pytest.mark.parametrize(
    ("prompt", "code", "told"),
    [
        ({"text": "p"}, 500, "Unable to parse JSON bytes array"),
        (7, 500, "Unable to parse JSON bytes array"),
        (None, 500, "Unable to parse JSON bytes array"),
        (["p", "q"], 400, "can not convert input 'PROMPT'"),
    ],
)
def test_a_prompt_that_is_no_text_is_refused_by_triton_itself(server, route, prompt, code, told):
    """It makes the tensors of these routes before it asks any model: the words are its own."""
    status, text = post(server, route, {"PROMPT": prompt, **SMALL})
    assert (status, told in text) == (code, True), text
