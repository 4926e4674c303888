"""The streaming model: events, results, positions, and clients over both protocols."""

import base64
import contextlib
import http.client
import http.server
import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from fakes.small_media import picture
from watching import dit_status, tell_jobs, until

from h3_client.client import H3Client
from h3_client.errors import H3ClientError
from h3_client.stream import ClipStream

pytestmark = pytest.mark.quiet
STEPS = 6
SMALL = {"width": 64, "height": 64, "num_inference_steps": STEPS + 1}
STAGE = {"test_step_delay_ms": 60, "running_jobs": 1, "max_jobs": 2, "stream_jobs": 3}


@pytest.fixture(scope="module")
def server(module_server):
    return module_server(**STAGE)


def events_of(server, fields: dict, **options: object) -> tuple[list[dict], ClipStream]:
    with ClipStream(server.grpc_url, "p", fields, **options) as stream:
        return list(stream), stream


def http_stream(url: str, body: dict) -> tuple[int, list[dict]]:
    connection = http.client.HTTPConnection(url, timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", "/v2/models/minimax_h3_stream/generate_stream", json.dumps(body))
        answer = connection.getresponse()
        lines = answer.read().split(b"\n\n")
        return answer.status, [json.loads(line[6:]) for line in lines if line]


def test_every_step_is_an_event_and_the_file_comes_last(server) -> None:
    events, stream = events_of(server, SMALL | {"seed": 5})
    assert events[0]["event"] == "accepted"
    steps = [event["step"] for event in events if event.get("stage") == "denoiser"]
    assert steps == list(range(STEPS))
    stages = list(dict.fromkeys(event.get("stage") for event in events if "stage" in event))
    assert stages == ["preprocess", "text_encoder", "denoiser", "video_decoder", "muxer"]
    elapsed = [event["elapsed_s"] for event in events if "elapsed_s" in event]
    assert elapsed == sorted(elapsed)
    assert events[-1]["event"] == "result"
    unary = H3Client(server.grpc_url).generate("p", **SMALL, seed=5)
    assert stream.result.mp4 == unary.mp4
    assert stream.result.metadata["job_id"] == events[0]["job_id"]
    assert H3Client(server.grpc_url).result(stream.request_id).mp4 == unary.mp4


def test_a_stream_takes_files(server) -> None:
    """A canvas that only the keyframe sets would be a full-size one, hence the explicit size."""
    fields = SMALL | {"keyframes": [picture(64, 64, 1)], "seed": 6}
    events, stream = events_of(server, fields)
    assert events[-1]["event"] == "result"
    assert stream.result.metadata["task"] == "fl2va"
    assert stream.result.mp4 == H3Client(server.grpc_url).generate("p", **fields).mp4


def test_http_gets_base64_or_a_handle(server) -> None:
    body = {"PROMPT": "p", "WIDTH": 64, "HEIGHT": 64, "NUM_INFERENCE_STEPS": 3, "SEED": 9}
    status, answers = http_stream(server.http_url, body | {"RESULT_AS": "base64"})
    assert status == 200
    clip = base64.b64decode(answers[-1]["MP4"])
    assert clip[4:8] == b"ftyp"
    status, answers = http_stream(server.http_url, body | {"RESULT_AS": "handle"})
    assert status == 200
    told = json.loads(answers[-1]["EVENT"])
    assert "MP4" not in answers[-1]
    assert H3Client(server.http_url, "http").result(told["handle"]).mp4 == [clip]


def test_generate_without_stream_works_and_hands_out_no_file(server) -> None:
    """Triton's endpoint for one response: the job runs to its end, its file is kept by id."""
    body = {"PROMPT": "p", "WIDTH": 64, "HEIGHT": 64, "NUM_INFERENCE_STEPS": 3, "id": "whole"}
    connection = http.client.HTTPConnection(server.http_url, timeout=60)
    with contextlib.closing(connection):
        path = "/v2/models/minimax_h3_stream/generate"
        connection.request("POST", path, json.dumps(body | {"RESULT_AS": "handle"}))
        answer = connection.getresponse()
        told = json.loads(answer.read())
    assert answer.status == 200
    assert told["error"].startswith("generate expects model to produce exactly 1 response")
    client = H3Client(server.grpc_url)
    assert client.job("whole")["state"] == "finished"
    assert client.result("whole").mp4[0][4:8] == b"ftyp"


class Proxy(http.server.BaseHTTPRequestHandler):
    """A plain proxy: knows nothing of Triton, passes bodies on as they come."""

    upstream = ""

    def do_POST(self) -> None:  # the library's name
        body = self.rfile.read(int(self.headers["Content-Length"]))
        connection = http.client.HTTPConnection(self.upstream, timeout=60)
        names = ("Content-Type", "Inference-Header-Content-Length")
        headers = {name: self.headers[name] for name in names if name in self.headers}
        connection.request("POST", self.path, body, headers)
        answer = connection.getresponse()
        self.send_response(answer.status)
        for name in names:
            if name in answer.headers:
                self.send_header(name, answer.headers[name])
        self.end_headers()
        while part := answer.read1(65_536):
            self.wfile.write(part)
        connection.close()

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_both_ways_pass_through_a_plain_proxy(server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Proxy, "upstream", server.http_url)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        url = f"127.0.0.1:{proxy.server_port}"
        unary = H3Client(url, "http").generate("p", width=64, height=64, num_inference_steps=3)
        assert unary.mp4[0][4:8] == b"ftyp"
        body = {"PROMPT": "p", "WIDTH": 64, "HEIGHT": 64, "NUM_INFERENCE_STEPS": 3}
        status, answers = http_stream(url, body | {"RESULT_AS": "handle", "id": "proxied"})
        assert (status, json.loads(answers[-1]["EVENT"])["event"]) == (200, "result")
        assert H3Client(url, "http").result("proxied").mp4 == unary.mp4
        proxy.shutdown()


def test_a_refusal_is_the_only_response_and_has_its_code(server) -> None:
    status, answers = http_stream(server.http_url, {"PROMPT": "p", "FPS": 30})
    assert status == 400
    assert answers == [{"error": "[invalid_request] fps: 30.0 is not legal; legal: 24"}]
    with pytest.raises(H3ClientError, match="RESULT_AS: 'gif' is not legal") as refusal:
        events_of(server, SMALL, result_as="gif")
    assert (refusal.value.status, refusal.value.kind) == ("INVALID_ARGUMENT", "invalid_request")
    with pytest.raises(H3ClientError, match="refrences: unknown request field"):
        events_of(server, SMALL | {"refrences": []})


def test_streams_wait_with_positions_and_the_excess_is_refused(server) -> None:
    places = STAGE["max_jobs"] + STAGE["stream_jobs"]
    long = SMALL | {"num_inference_steps": 120}
    client = H3Client(server.grpc_url)
    positions: dict[int, list[int]] = {index: [] for index in range(places)}
    silent: dict[int, float] = {}

    def follow(index: int) -> None:
        priority = "high" if index == places - 1 else "normal"
        fields = long | {"priority": priority}
        with (
            contextlib.suppress(H3ClientError),
            ClipStream(server.grpc_url, "p", fields, request_id=f"q{index}") as stream,
        ):
            for event in stream:
                if event["event"] == "heartbeat":
                    silent.setdefault(index, stream.events_s[-1] - stream.events_s[-2])
                if event["event"] == "position" and event["state"] == "queued":
                    positions[index].append(event["position"])

    with ThreadPoolExecutor(places) as pool:
        for index in range(places):
            pool.submit(follow, index)
            until(lambda index=index: "state" in client.job(f"q{index}"))
        until(lambda: client.ping()["queued"] == STAGE["stream_jobs"])
        until(lambda: positions[places - 1])
        assert positions[places - 1][0] == 1  # the high priority stands in front
        began = time.monotonic()
        with pytest.raises(H3ClientError, match=r"streams run or wait.*retry after 5 s") as full:
            events_of(server, long)
        assert time.monotonic() - began < 1.0
        assert full.value.status == "UNAVAILABLE"
        with pytest.raises(H3ClientError, match="this server admits 2; retry after 5 s"):
            client.generate("p", **SMALL)
        until(lambda: len(silent) >= STAGE["stream_jobs"])  # those who wait still hear something
        assert all(2.0 <= seconds < 3.0 for seconds in silent.values()), silent
        for index in range(places):
            client.cancel(f"q{index}")
    assert positions[2][:2] == [1, 2]  # overtaken by the high priority
    until(lambda: client.ping()["active"] == 0)
    assert dit_status(server)["sessions"] == 0


@pytest.fixture(scope="module")
def mortal_server(module_server):
    return module_server(client_jobs=1, running_jobs=2, max_jobs=2, test_step_delay_ms=60)


def test_named_clients_are_limited(mortal_server) -> None:
    server = mortal_server
    client = H3Client(server.grpc_url)
    with ThreadPoolExecutor(1) as pool:
        long = SMALL | {"num_inference_steps": 100}
        first = pool.submit(client.generate, "p", client="a", request_id="a1", **long)
        until(lambda: client.job("a1").get("state") == "running")
        with pytest.raises(H3ClientError, match="client 'a' has 1 unfinished jobs"):
            H3Client(server.grpc_url).generate("p", client="a", **SMALL)
        with pytest.raises(H3ClientError, match="client 'a' has 1 unfinished jobs"):
            events_of(server, SMALL | {"client": "a"})
        assert events_of(server, SMALL | {"client": "b"})[1].result.mp4
        client.cancel("a1")
        with pytest.raises(H3ClientError, match="was cancelled"):
            first.result()


def test_a_dead_stream_model_is_noticed_and_its_jobs_are_ended(mortal_server) -> None:
    server = mortal_server
    client = H3Client(server.grpc_url)
    killed = threading.Event()

    def watch() -> None:
        with ClipStream(server.grpc_url, "p", SMALL | {"num_inference_steps": 60}) as stream:
            for event in stream:
                if event.get("step") == 2 and not killed.is_set():
                    os.kill(server.stub_pids("minimax_h3_stream")[0], signal.SIGKILL)
                    killed.set()

    began = time.monotonic()
    with pytest.raises(H3ClientError, match="its stream model died"):
        watch()
    assert time.monotonic() - began < 8
    told = tell_jobs(server, {"op": "worker_lost", "model": "minimax_h3_stream"})
    assert len(told["ended"]) == 1
    tell_jobs(server, {"op": "worker_back", "model": "minimax_h3_stream"})
    assert client.ping()["active"] == 0
    until(lambda: dit_status(server)["sessions"] == 0, 3)


def test_the_death_of_a_denoiser_leaves_no_session(mortal_server) -> None:
    server = mortal_server
    client = H3Client(server.grpc_url)
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(
            client.generate, "p", request_id="d", **(SMALL | {"num_inference_steps": 60})
        )
        until(lambda: client.job("d").get("step", 0) >= 2)
        assert dit_status(server)["sessions"] == 1
        for pid in server.stub_pids("denoiser"):
            os.kill(pid, signal.SIGKILL)
        told = tell_jobs(server, {"op": "worker_lost", "model": "denoiser"})
        assert len(told["ended"]) == 1
        until(lambda: dit_status(server)["sessions"] == 0, 3)
        with pytest.raises(H3ClientError):
            job.result()
    assert client.job("d")["error"]["kind"] == "worker_lost"
    assert client.ping()["active"] == 0
