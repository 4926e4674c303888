"""gRPC against a servicer in this process."""

import time
from collections.abc import Iterator
from concurrent import futures

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from h3_client.client import H3Client
from h3_client.errors import H3ClientError
from h3_client.fields import encode_request
from h3_client.transport import GrpcTransport

ERRORS = {
    "wrong": (grpc.StatusCode.INVALID_ARGUMENT, "in ensemble 'minimax_h3', width: 33"),
    "full": (grpc.StatusCode.UNAVAILABLE, "in ensemble 'minimax_h3', 8 jobs are active"),
    "stopped": (grpc.StatusCode.CANCELLED, "in ensemble 'minimax_h3', job j was cancelled"),
    "absent": (grpc.StatusCode.NOT_FOUND, "Request for unknown model"),
}


class FakeTriton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Echoes the prompt as MP4, or answers with the error named by the model."""

    def __init__(self) -> None:
        self.alive = True
        self.request_ids: list[str] = []

    def ServerLive(self, request, context):  # noqa: N802
        if not self.alive:
            context.abort(grpc.StatusCode.UNAVAILABLE, "down")
        return service_pb2.ServerLiveResponse(live=True)

    def ServerReady(self, request, context):  # noqa: N802
        return service_pb2.ServerReadyResponse(ready=True)

    def ModelReady(self, request, context):  # noqa: N802
        return service_pb2.ModelReadyResponse(ready=request.name == "minimax_h3")

    def ModelInfer(self, request, context):  # noqa: N802
        self.request_ids.append(request.id)
        if request.model_name in ERRORS:
            context.abort(*ERRORS[request.model_name])
        if request.model_name == "dies":
            self.alive = False
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        if request.model_name == "slow":
            time.sleep(0.6)
        answer = service_pb2.ModelInferResponse(model_name=request.model_name, id=request.id)
        answer.outputs.add(name="MP4", datatype="BYTES", shape=[1])
        answer.raw_output_contents.append(request.raw_input_contents[0])
        answer.outputs.add(name="FRAMES", datatype="UINT8", shape=[0, 0, 0, 0, 3])
        answer.raw_output_contents.append(b"")
        return answer


@pytest.fixture
def triton() -> Iterator[tuple[str, FakeTriton]]:
    servicer = FakeTriton()
    limits = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(futures.ThreadPoolExecutor(2), options=limits)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", servicer
    server.stop(None).wait()


def infer(address: str, model: str, prompt: str = "a fox", timeout_s: float | None = None):
    transport = GrpcTransport(address)
    try:
        inputs = encode_request({"prompt": prompt})
        return transport.infer(model, inputs, ["MP4", "FRAMES"], "mine", timeout_s)
    finally:
        transport.close()


def test_one_exchange(triton) -> None:
    address, servicer = triton
    outputs = infer(address, "minimax_h3")
    assert outputs["MP4"].tolist() == [b"a fox"]
    assert outputs["FRAMES"].shape == (0, 0, 0, 0, 3)
    assert outputs["FRAMES"].dtype == np.uint8
    assert servicer.request_ids == ["mine"]


def test_a_large_body_arrives_whole(triton) -> None:
    prompt = "x" * 20_000_000
    assert infer(triton[0], "minimax_h3", prompt)["MP4"][0] == prompt.encode()


@pytest.mark.parametrize(
    ("model", "status", "message"),
    [
        ("wrong", "INVALID_ARGUMENT", "width: 33"),
        ("full", "UNAVAILABLE", "8 jobs are active"),
        ("stopped", "CANCELLED", "job j was cancelled"),
        ("absent", "NOT_FOUND", "Request for unknown model"),
    ],
)
def test_errors_carry_status_and_clean_message(
    triton, model: str, status: str, message: str
) -> None:
    with pytest.raises(H3ClientError) as refusal:
        infer(triton[0], model)
    assert (refusal.value.status, str(refusal.value)) == (status, message)


def test_a_server_that_died_is_not_a_full_one(triton) -> None:
    address, _ = triton
    with pytest.raises(H3ClientError, match=f"no Triton server answers at {address}") as lost:
        infer(address, "dies")
    assert lost.value.status == "CONNECTION"
    assert "Socket closed" in str(lost.value)


def test_a_callers_limit_is_kept_and_there_is_none_by_default(triton) -> None:
    assert infer(triton[0], "slow")["MP4"].tolist() == [b"a fox"]
    with pytest.raises(H3ClientError, match=r"within 0\.2 s") as limit:
        infer(triton[0], "slow", timeout_s=0.2)
    assert limit.value.status == "DEADLINE_EXCEEDED"


def test_readiness_of_server_and_model(triton) -> None:
    transport = GrpcTransport(triton[0])
    assert transport.is_live() is True
    assert transport.is_ready("minimax_h3") is True
    assert transport.is_ready("absent") is False
    transport.close()


def test_nobody_there_fails_fast_and_names_the_address() -> None:
    began = time.monotonic()
    with (
        H3Client("127.0.0.1:1") as client,
        pytest.raises(H3ClientError, match=r"no Triton server answers at 127\.0\.0\.1:1 ") as lost,
    ):
        client.generate("a fox")
    assert lost.value.status == "CONNECTION"
    assert time.monotonic() - began < 3.0
