"""HTTP against a small local server that speaks Triton's form of KServe with binary tensors."""

import contextlib
import json
import struct
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import numpy as np
import pytest

from h3_client.client import H3Client
from h3_client.errors import H3ClientError
from h3_client.fields import encode_request
from h3_client.transport import HttpTransport


class FakeTriton(BaseHTTPRequestHandler):
    """Answers `/infer` with two outputs; special models misbehave."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[list[dict[str, object]]] = []
    blob: ClassVar[bytes] = b"clip"

    def do_GET(self) -> None:
        self._reply(400 if "/models/absent/" in self.path else 200, b"", {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        header = int(self.headers["Inference-Header-Content-Length"])
        self.seen.append({"json": json.loads(body[:header]), "binary": body[header:]})
        model = self.path.split("/")[-2]
        if model == "wrong":
            error = {"error": "in ensemble 'minimax_h3', width: 33 is not legal"}
            self._reply(400, json.dumps(error).encode(), {})
        elif model == "full":
            self._reply(503, b'{"error": "8 jobs are active"}', {})
        elif model == "proxy":
            self._reply(502, b"<html>Bad gateway</html>", {})
        elif model == "vanish":
            self.close_connection = True
        elif model == "slow":
            time.sleep(1.0)
            with contextlib.suppress(BrokenPipeError):  # its client may have given up
                self._answer()
        else:
            self._answer()

    def _answer(self) -> None:
        clip = struct.pack("<I", len(self.blob)) + self.blob
        frames = np.arange(6, dtype=np.uint8)
        header = {
            "model_name": "m",
            "outputs": [
                {
                    "name": "MP4",
                    "datatype": "BYTES",
                    "shape": [1],
                    "parameters": {"binary_data_size": len(clip)},
                },
                {
                    "name": "FRAMES",
                    "datatype": "UINT8",
                    "shape": [2, 3],
                    "parameters": {"binary_data_size": 6},
                },
            ],
        }
        text = json.dumps(header).encode()
        extra = {"Inference-Header-Content-Length": str(len(text))}
        self._reply(200, text + clip + frames.tobytes(), extra)

    def _reply(self, code: int, body: bytes, extra: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **extra}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeTriton)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def infer(address: str, model: str = "minimax_h3", timeout_s: float | None = None):
    inputs = encode_request({"prompt": "a fox", "width": 64})
    return HttpTransport(address).infer(model, inputs, ["MP4", "FRAMES"], "mine", timeout_s)


def test_one_exchange(address: str) -> None:
    FakeTriton.seen.clear()
    outputs = infer(address)
    assert outputs["MP4"].tolist() == [b"clip"]
    np.testing.assert_array_equal(outputs["FRAMES"], np.arange(6, dtype=np.uint8).reshape(2, 3))
    (request,) = FakeTriton.seen
    assert request["json"]["id"] == "mine"
    assert [tensor["name"] for tensor in request["json"]["inputs"]] == ["PROMPT", "WIDTH"]
    assert [tensor["datatype"] for tensor in request["json"]["inputs"]] == ["BYTES", "INT64"]
    asked = {output["name"]: output["parameters"] for output in request["json"]["outputs"]}
    assert asked == {"MP4": {"binary_data": True}, "FRAMES": {"binary_data": True}}
    assert request["binary"] == struct.pack("<I", 5) + b"a fox" + struct.pack("<q", 64)


def test_a_large_body_arrives_whole(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blob = np.random.default_rng(1).bytes(20_000_000)
    monkeypatch.setattr(FakeTriton, "blob", blob)
    assert infer(address)["MP4"][0] == blob


@pytest.mark.parametrize(
    ("model", "status", "message"),
    [
        ("wrong", "INVALID_ARGUMENT", "width: 33 is not legal"),
        ("full", "UNAVAILABLE", "8 jobs are active"),
        ("proxy", "HTTP_502", "HTTP 502: <html>Bad gateway</html>"),
    ],
)
def test_errors_carry_status_and_clean_message(
    address: str, model: str, status: str, message: str
) -> None:
    with pytest.raises(H3ClientError) as refusal:
        infer(address, model)
    assert (refusal.value.status, str(refusal.value)) == (status, message)


def test_a_lost_connection_names_the_server(address: str) -> None:
    with pytest.raises(H3ClientError, match=f"lost the Triton server at {address}") as lost:
        infer(address, "vanish")
    assert lost.value.status == "CONNECTION"


def test_a_callers_limit_is_kept_and_there_is_none_by_default(address: str) -> None:
    assert infer(address, "slow")["MP4"].tolist() == [b"clip"]
    began = time.monotonic()
    with pytest.raises(H3ClientError, match=r"within 0\.2 s") as limit:
        infer(address, "slow", timeout_s=0.2)
    assert limit.value.status == "DEADLINE_EXCEEDED"
    assert time.monotonic() - began < 0.9


def test_readiness_of_server_and_model(address: str) -> None:
    transport = HttpTransport(address)
    assert transport.is_live() is True
    assert transport.is_ready("minimax_h3") is True
    assert transport.is_ready("absent") is False


def test_a_base_path_goes_in_front(address: str) -> None:
    assert infer(f"{address}/behind/proxy/")["MP4"].tolist() == [b"clip"]


def test_nobody_there_fails_fast_and_names_the_address() -> None:
    began = time.monotonic()
    with pytest.raises(H3ClientError, match=r"no Triton server answers at 127\.0\.0\.1:1 ") as lost:
        H3Client("127.0.0.1:1", protocol="http").ping()
    assert lost.value.status == "CONNECTION"
    assert time.monotonic() - began < 3.0


def test_a_nonsense_address_is_refused() -> None:
    with pytest.raises(H3ClientError, match="not host:port"):
        HttpTransport("127.0.0.1:http").is_live()
