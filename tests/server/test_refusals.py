"""Bad requests: the right code, fast, naming field, value and legal range."""

import json
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from fakes.small_media import picture
from tritonclient.utils import InferenceServerException

from h3_client.client import H3Client, H3ClientError
from h3_client.stream import ClipStream

pytestmark = pytest.mark.quiet
PICTURE = picture(64, 64)
SMALL = {"width": 64, "height": 64, "num_inference_steps": 4}

# field, value as shown, legal range as shown, request
BAD = [
    ("prompt", "''", "not blank", {"prompt": ""}),
    ("width", "1080", "nearest: 1056 or 1088", {"width": 1080, "height": 1920}),
    ("width", "4294967360", "from 32 to 8192", {"width": 2**32 + 64}),
    ("width", "64", "width and height together", {"width": 64, "height": None}),
    ("fps", "24.9", "24", {"fps": 24.9}),
    ("duration", "3.9", "[4, 15]", {"duration": 3.9}),
    ("duration", "15.1", "[4, 15]", {"duration": 15.1}),
    ("duration", "nan", "4..15", {"duration": float("nan")}),
    ("num_inference_steps", "1", "2..200", {"num_inference_steps": 1}),
    ("refrences", "refrences", "known fields", {"refrences": 1}),
    ("references", "absent", "at least one image", {"task": "ref2va"}),
    ("keyframes", "absent", "1 or 2 pictures", {"task": "fl2va"}),
    ("task", "'ref2va' is not served", "t2va, fl2va", {"references": [PICTURE]}),
    ("keyframes", "1 is not legal", "absent for task t2va", {"task": "t2va", "keyframes": PICTURE}),
    (
        "keyframes, references",
        "1 and 1 files are not legal",
        "legal: keyframes (h3 generate --first, --last) for task fl2va, or references",
        {"keyframes": PICTURE, "references": PICTURE},
    ),
    ("keyframes[0]", "unknown format", "JPEG, PNG, WEBP", {"keyframes": [b"garbage"]}),
    ("keyframes[1]", "GIF", "JPEG, PNG, WEBP", {"keyframes": [PICTURE, b"GIF89a" + bytes(50)]}),
    ("keyframes[0]", "file: names", "the bytes", {"keyframes": "file:a.png"}),
    ("frame_indices", "[7]", "[0] or [-1]", {"keyframes": PICTURE, "frame_indices": 7}),
    ("start_time_seconds", "-1", "0 or more", {"start_time_seconds": [-1.0]}),
    ("audio_mode", "lock_source", "native", {"audio_mode": "lock_source"}),
    ("quality", "reserved", "does not have", {"quality": "high"}),
    ("width, height, num_frames", "packed rows", "262144", {"width": 4096, "height": 4096}),
    ("video_crf", "99", "0..51", {"video_crf": 99}),
]


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize(("field", "value", "legal", "fields"), BAD)
def test_refused_within_100_ms(server, protocol, field, value, legal, fields) -> None:
    merged = {"prompt": "p"} | SMALL | fields
    merged = {name: given for name, given in merged.items() if given is not None}
    client = H3Client(server.grpc_url if protocol == "grpc" else server.http_url, protocol=protocol)
    client.ready()  # the connection is not what is timed
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        with pytest.raises(H3ClientError) as refusal:
            client.generate(**merged)
        seconds.append(time.perf_counter() - began)
    assert refusal.value.status == "INVALID_ARGUMENT"
    message = str(refusal.value)
    assert message.startswith(f"{field}:"), message
    assert value in message
    assert legal in message
    assert min(seconds) < 0.1, seconds


def test_the_next_request_works_and_the_dit_was_not_asked(server) -> None:
    client = H3Client(server.grpc_url)
    before = server.inference_count("dit_fl2va")
    with pytest.raises(H3ClientError):
        client.generate("p", **(SMALL | {"duration": 3.9}))
    assert server.inference_count("dit_fl2va") == before
    assert client.generate("p", **SMALL).mp4[0][4:8] == b"ftyp"


def test_plain_http_status_and_text(server) -> None:
    body = {
        "inputs": [
            {"name": "PROMPT", "datatype": "BYTES", "shape": [1], "data": ["p"]},
            {"name": "FPS", "datatype": "FP32", "shape": [1], "data": [30]},
        ]
    }
    request = urllib.request.Request(
        f"http://{server.http_url}/v2/models/minimax_h3/infer", json.dumps(body).encode()
    )
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(request)
    assert refusal.value.code == 400
    assert "fps: 30.0 is not legal; legal: 24" in json.load(refusal.value)["error"]


def test_an_unknown_tensor_is_refused_by_name(server) -> None:
    body = {
        "inputs": [
            {"name": "PROMPT", "datatype": "BYTES", "shape": [1], "data": ["p"]},
            {"name": "REFRENCES", "datatype": "BYTES", "shape": [1], "data": ["x"]},
        ]
    }
    request = urllib.request.Request(
        f"http://{server.http_url}/v2/models/minimax_h3/infer", json.dumps(body).encode()
    )
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(request)
    assert refusal.value.code == 400
    assert "REFRENCES" in json.load(refusal.value)["error"]


def test_the_preprocess_model_alone_refuses_the_same(server) -> None:
    """One table of limits, whichever way a request comes in."""
    refusals = []
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        for model in ("minimax_h3", "preprocess"):
            tensors = []
            for name, files in (("PROMPT", [b"p"]), ("REFERENCES", [PICTURE] * 10)):
                tensors.append(grpcclient.InferInput(name, [len(files)], "BYTES"))
                tensors[-1].set_data_from_numpy(np.array(files, dtype=object))
            tensors.append(grpcclient.InferInput("TASK", [1], "BYTES"))
            tensors[-1].set_data_from_numpy(np.array([b"t2va"], dtype=object))
            with pytest.raises(InferenceServerException) as refusal:
                client.infer(model, tensors)
            refusals.append(refusal.value.message().removeprefix("in ensemble 'minimax_h3', "))
    assert refusals[0] == refusals[1]
    assert refusals[0].startswith("references: 10 is not legal; legal: absent for task t2va")


def body(**tensors: bytes) -> bytes:
    """An HTTP body with tensors as JSON spells them; WIDTH is INT64, the others are text.

    What Triton's own parser refuses is HTTP 500, and names no field.
    """
    given = [
        b'{"name":"%s","datatype":"%s","shape":[1],"data":[%s]}'
        % (name.encode(), b"INT64" if name == "WIDTH" else b"BYTES", text)
        for name, text in ({"PROMPT": b'"p"'} | tensors).items()
    ]
    return b'{"inputs":[%s]}' % b",".join(given)


@pytest.mark.parametrize(
    ("sent", "code", "told"),
    [
        (body(PROMPT=b'"%s"' % (b"x" * 20_000_000)), 400, "prompt: 20,000,000 bytes"),
        (b'{"inputs":' + b"[" * 1_000_000, 500, "parse the request JSON"),
        (b'{"inputs":[{"name":"PROMPT"', 500, "parse the request JSON"),
        (b"PROMPT=p", 500, "parse the request JSON"),
        (body(OPTIONS=b'"{\\"\\\\ud800\\":1}"'), 400, r"\ud800: unknown"),
        (body(OPTIONS=b'"{\\"client\\":\\"\\\\ud800\\"}"'), 400, "client: "),
        (body(WIDTH=b"4294967360"), 400, "width: 4294967360 is not legal"),
        (body(WIDTH=b"9223372036854775872"), 500, "Unable to parse"),
        (body(WIDTH=b"64.0"), 500, "Unable to parse"),
        (body(WIDTH=b"64").replace(b"INT64", b"INT32"), 400, "WIDTH"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else str(value),
)
def test_hostile_bodies_are_refused_and_the_server_lives(server, sent, code, told) -> None:
    request = urllib.request.Request(f"http://{server.http_url}/v2/models/minimax_h3/infer", sent)
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(request)
    text = refusal.value.read().decode()
    assert (refusal.value.code, told in text, "Traceback" in text) == (code, True, False), text
    assert H3Client(server.grpc_url).ping()["active"] == 0


def test_the_wrong_port_is_named(server) -> None:
    http, grpc = server.http_url, server.grpc_url
    with pytest.raises(H3ClientError, match=f"{grpc} speaks gRPC"):
        H3Client(grpc, "http").ping()
    with pytest.raises(H3ClientError, match=f"{http} speaks HTTP"):
        H3Client(http).ping()
    with pytest.raises(H3ClientError, match="speaks HTTP"), ClipStream(http, "a") as stream:
        next(iter(stream))


def test_a_long_request_id_is_named_and_not_repeated(server) -> None:
    for url, protocol in ((server.grpc_url, "grpc"), (server.http_url, "http")):
        with pytest.raises(H3ClientError) as refused:
            H3Client(url, protocol).generate("p", **SMALL, request_id="i" * 5000)
        assert (
            refused.value.message == "request_id: 5,000 characters are not legal; legal: up to 128"
        )
