import json

import numpy as np
import pytest

from h3_client.client import H3Client
from h3_client.errors import H3ClientError

MP4 = b"\0\0\0\x18ftypisom"


@pytest.fixture
def connected(fake_transport, text_array):
    """A client on a fake transport that makes two clips and answers `jobs` operations."""

    def answer(model, request):
        if model == "jobs":
            return {"ANSWER": text_array(json.dumps(answers[json.loads(operation(request))["op"]]))}
        outputs = {
            "MP4": text_array(MP4 + b"0", MP4 + b"1"),
            "METADATA": text_array('{"num_frames": 124}'),
            "FRAMES": np.ones((2, 3, 4, 4, 3), np.uint8),
            "AUDIO": np.zeros((2, 2, 800), np.float32),
        }
        return {name: outputs[name] for name in request["outputs"]}

    answers = {
        "ping": {"ok": True},
        "get": {"job_id": "j", "state": "running"},
        "list": {"jobs": [{"job_id": "j"}]},
        "cancel": {"cancelled": True},
    }
    transport = fake_transport(answer)
    return H3Client(transport=transport), transport, answers


def operation(request) -> bytes:
    return request["inputs"]["OP"][0]


def test_generate_asks_for_files_and_metadata_only(connected) -> None:
    client, transport, _ = connected
    result = client.generate("a fox", width=64, height=64)
    (request,) = transport.requests
    assert request["model"] == "minimax_h3"
    assert request["outputs"] == ["MP4", "METADATA"]
    assert request["timeout_s"] is None
    assert set(request["inputs"]) == {"PROMPT", "WIDTH", "HEIGHT"}
    assert result.mp4 == [MP4 + b"0", MP4 + b"1"]
    assert all(type(clip) is bytes for clip in result.mp4)
    assert result.metadata == {"num_frames": 124}
    assert result.frames is None
    assert result.audio is None
    assert len(result.request_id) == 32
    assert request["request_id"] == result.request_id


def test_arrays_come_when_asked_for(connected) -> None:
    client, transport, _ = connected
    result = client.generate("a fox", frames=True, audio=True)
    (request,) = transport.requests
    assert request["outputs"] == ["MP4", "METADATA", "FRAMES", "AUDIO"]
    assert bool(request["inputs"]["RETURN_FRAMES"][0]) is True
    assert result.frames.shape == (2, 3, 4, 4, 3)
    assert result.audio.shape == (2, 2, 800)


def test_the_field_alone_also_brings_the_frames(connected) -> None:
    client, _, _ = connected
    assert client.generate("a fox", return_frames=True).frames is not None
    assert client.generate("a fox", return_frames=False).frames is None


def test_frames_that_were_asked_for_and_are_missing_are_an_error(
    fake_transport, text_array
) -> None:
    def answer(model, request):
        empty = np.zeros((0, 0, 0, 0, 3), np.uint8)
        return {"MP4": text_array(MP4), "METADATA": text_array("{}"), "FRAMES": empty}

    client = H3Client(transport=fake_transport(answer))
    assert client.generate("a fox").mp4 == [MP4]
    with pytest.raises(H3ClientError, match="FRAMES was asked for and is empty"):
        client.generate("a fox", frames=True)


def test_request_ids_are_fresh_or_the_callers_own(connected) -> None:
    client, transport, _ = connected
    client.generate("a fox")
    client.generate("a fox")
    client.generate("a fox", request_id="mine", timeout_s=9.0)
    ids = [request["request_id"] for request in transport.requests]
    assert ids[0] != ids[1]
    assert ids[2] == "mine"
    assert transport.requests[2]["timeout_s"] == 9.0


def test_jobs_operations(connected) -> None:
    client, transport, _ = connected
    assert client.ping() == {"ok": True}
    assert client.job("mine") == {"job_id": "j", "state": "running"}
    assert client.cancel("mine") == {"cancelled": True}
    assert client.jobs() == [{"job_id": "j"}]
    assert [json.loads(operation(request)) for request in transport.requests] == [
        {"op": "ping"},
        {"op": "get", "id": "mine"},
        {"op": "cancel", "id": "mine"},
        {"op": "list"},
    ]
    assert all(request["timeout_s"] for request in transport.requests)


def test_whether_there_is_a_server_is_asked_once(connected) -> None:
    client, transport, _ = connected
    client.ping()
    client.generate("a fox")
    assert transport.live_checks == 1


def test_ready_is_an_answer_never_an_error(connected) -> None:
    client, transport, _ = connected
    assert client.ready() is True
    transport.ready = False
    assert client.ready() is False

    def refuse(model):
        raise H3ClientError("CONNECTION", "nobody there")

    transport.is_ready = refuse
    assert client.ready() is False


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("state", ["cancelled", "failed"])
def test_a_cancel_is_told_apart_from_a_wrong_request(
    fake_transport, text_array, protocol: str, state: str
) -> None:
    def answer(model, request):
        if model == "jobs":
            assert json.loads(operation(request))["id"] == "mine"
            return {"ANSWER": text_array(json.dumps({"state": state}))}
        raise H3ClientError("INVALID_ARGUMENT", "job stopped")

    client = H3Client(protocol=protocol, transport=fake_transport(answer))
    with pytest.raises(H3ClientError) as refusal:
        client.generate("a fox", request_id="mine")
    over_http = protocol == "http" and state == "cancelled"
    assert refusal.value.status == ("CANCELLED" if over_http else "INVALID_ARGUMENT")
    assert str(refusal.value) == "job stopped"


def test_a_lost_jobs_model_does_not_hide_the_servers_error(fake_transport) -> None:
    def answer(model, request):
        status = "INTERNAL" if model == "jobs" else "INVALID_ARGUMENT"
        raise H3ClientError(status, f"from {model}")

    client = H3Client(protocol="http", transport=fake_transport(answer))
    with pytest.raises(H3ClientError) as refusal:
        client.generate("a fox")
    assert (refusal.value.status, str(refusal.value)) == ("INVALID_ARGUMENT", "from minimax_h3")


@pytest.mark.parametrize(
    ("outputs", "named"),
    [
        ({"METADATA": b"{}"}, "MP4"),
        ({"MP4": MP4}, "METADATA"),
        ({"MP4": MP4, "METADATA": b"not json"}, "METADATA"),
        ({"MP4": MP4, "METADATA": b"[]"}, "METADATA"),
    ],
)
def test_a_broken_answer_is_named(fake_transport, text_array, outputs, named: str) -> None:
    transport = fake_transport(lambda *_: {name: text_array(v) for name, v in outputs.items()})
    with pytest.raises(H3ClientError, match=named) as refusal:
        H3Client(transport=transport).generate("a fox")
    assert refusal.value.status == "INTERNAL"
