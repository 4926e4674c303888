"""`h3 generate` and `h3 jobs` against a fake transport, through the real command line."""

import json
import signal
import threading
from pathlib import Path

import pytest

from h3_client import cli, connection, generate, jobs_command
from h3_client.client import H3Client
from h3_client.errors import H3ClientError

MP4 = b"\0\0\0\x18ftypisom"
METADATA = {
    "job_id": "j1",
    "width": 64,
    "height": 32,
    "num_frames": 124,
    "media_s": 5.175,
    "num_forwards": 49,
    "seed": 7,
}
JOB = {
    "job_id": "j1",
    "alias": "mine",
    "state": "running",
    "stage": "denoiser",
    "step": 5,
    "num_steps": 10,
    "clip": 0,
    "num_clips": 1,
    "position": 0,
    "elapsed_s": 1.5,
}


class FakeServer:
    """Generates at once, or when its job is cancelled; remembers what it was asked."""

    def __init__(self, fake_transport, text_array) -> None:
        self.transport = fake_transport(self.answer)
        self.text = text_array
        self.cancelled = threading.Event()
        self.started = threading.Event()
        self.waits_for_cancel = False
        self.job: dict[str, object] = JOB
        self.operations: list[dict[str, object]] = []

    def answer(self, model, request):
        if model == "jobs":
            operation = json.loads(request["inputs"]["OP"][0])
            self.operations.append(operation)
            return {"ANSWER": self.text(json.dumps(self.jobs(operation)))}
        self.started.set()
        if self.waits_for_cancel:
            assert self.cancelled.wait(10)
            raise H3ClientError("CANCELLED", "job j1 was cancelled in denoiser at 5/10")
        count = int(request["inputs"].get("NUM_OUTPUTS", [1])[0])
        clips = [MP4 + bytes([index]) for index in range(count)]
        return {"MP4": self.text(*clips), "METADATA": self.text(json.dumps(METADATA))}

    def jobs(self, operation):
        if operation["op"] == "list":
            return {"jobs": [self.job]}
        if operation.get("id") == "nobody":
            return {"unknown": True}
        if operation["op"] == "cancel":
            self.cancelled.set()
            return {"cancelled": self.job["state"] == "running", **self.job}
        return self.job


@pytest.fixture
def server(fake_transport, text_array, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    fake = FakeServer(fake_transport, text_array)
    client = H3Client(transport=fake.transport)
    for module in (generate, jobs_command):
        monkeypatch.setattr(module, "connect", lambda args: client)
    return fake


def sent(server: FakeServer) -> dict[str, object]:
    (request,) = (r for r in server.transport.requests if r["model"] == "minimax_h3")
    return {name: values[0] for name, values in request["inputs"].items()}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--first", "a.png"], {"KEYFRAMES": [b"a"], "FRAME_INDICES": [0]}),
        (["--last", "b.png"], {"KEYFRAMES": [b"b"], "FRAME_INDICES": [-1]}),
        (
            ["--last", "b.png", "--first", "a.png"],
            {"KEYFRAMES": [b"a", b"b"], "FRAME_INDICES": [0, -1]},
        ),
        (
            [
                *("--ref", "b.png", "--ref", "file:x/y.mp4", "--ref", "a.png", "--start", "1.5"),
                *("--task", "ref2va", "--audio-mode", "native"),
            ],
            {
                "REFERENCES": [b"b", b"file:x/y.mp4", b"a"],
                "START_TIME_SECONDS": [1.5],
                "TASK": [b"ref2va"],
                "AUDIO_MODE": [b"native"],
            },
        ),
    ],
)
def test_files_are_sent_in_order(
    server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words, expected
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.png").write_bytes(name.encode())
    assert cli.main(["generate", "p", "--quiet", *words]) == 0
    (request,) = (r for r in server.transport.requests if r["model"] == "minimax_h3")
    inputs = {name: list(values) for name, values in request["inputs"].items()}
    assert inputs == {"PROMPT": [b"p"], **expected}


def test_one_clip(server, tmp_path: Path, capsys) -> None:
    out = tmp_path / "fox.mp4"
    words = ["generate", "a fox", "-o", str(out), "--width", "64", "--height", "32"]
    words += ["--steps", "50", "--seed", "7", "--duration", "5", "--option", "video_crf=20"]
    assert cli.main(words) == 0
    assert out.read_bytes() == MP4 + b"\0"
    fields = sent(server)
    assert json.loads(fields.pop("OPTIONS")) == {"video_crf": 20}
    assert fields == {
        "PROMPT": b"a fox",
        "WIDTH": 64,
        "HEIGHT": 32,
        "NUM_INFERENCE_STEPS": 50,
        "SEED": 7,
        "DURATION": 5.0,
    }
    printed = capsys.readouterr().out
    assert f"{out}  13 bytes" in printed
    assert "64x32, 124 frames, 5.175 s, 49 forwards, seed 7" in printed
    assert "rtf " in printed


def test_every_option_is_a_request_field(server, tmp_path: Path) -> None:
    words = ["generate", "p", "-o", str(tmp_path / "o.mp4"), "--quiet", "--task", "t2va"]
    words += ["--aspect-ratio", "16:9", "--num-frames", "124", "--num-outputs", "1"]
    assert cli.main(words) == 0
    assert set(sent(server)) == {"PROMPT", "TASK", "ASPECT_RATIO", "NUM_FRAMES", "NUM_OUTPUTS"}


@pytest.mark.parametrize("how", [["--num-outputs", "2"], ["--option", "num_outputs=2"]])
def test_several_clips(server, tmp_path: Path, how: list[str]) -> None:
    assert cli.main(["generate", "p", "-o", str(tmp_path / "o.mp4"), *how]) == 0
    assert (tmp_path / "o-0.mp4").read_bytes() == MP4 + b"\0"
    assert (tmp_path / "o-1.mp4").read_bytes() == MP4 + b"\1"


def test_json_report(server, tmp_path: Path, capsys) -> None:
    words = ["generate", "p", "-o", str(tmp_path / "o.mp4"), "--json", "--num-outputs", "2"]
    assert cli.main(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["metadata"] == METADATA
    assert report["files"] == [str(tmp_path / "o-0.mp4"), str(tmp_path / "o-1.mp4")]
    assert report["client_rtf"] == pytest.approx(report["client_s"] / (2 * 5.175), abs=1e-5)


def test_progress_is_asked_for_by_the_requests_own_alias(
    server, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(generate, "POLL_S", 0.01)
    release = threading.Event()
    answer = server.answer

    def slow(model, request):
        if model == "jobs":
            release.set()
        elif not release.wait(10):
            raise AssertionError
        return answer(model, request)

    server.transport.answer = slow
    assert cli.main(["generate", "p", "-o", str(tmp_path / "o.mp4")]) == 0
    (request,) = (r for r in server.transport.requests if r["model"] == "minimax_h3")
    assert server.operations[0] == {"op": "get", "id": request["request_id"]}
    assert "denoiser 50 % of 10 forwards" in capsys.readouterr().err


def test_lost_progress_does_not_end_the_request(server, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(generate, "POLL_S", 0.01)
    asked = threading.Event()
    answer = server.answer

    def without_jobs(model, request):
        if model == "jobs":
            asked.set()
            raise H3ClientError("INTERNAL", "Stub process 'jobs_0_0' is not healthy.")
        assert asked.wait(10)
        return answer(model, request)

    server.transport.answer = without_jobs
    assert cli.main(["generate", "p", "-o", str(tmp_path / "o.mp4")]) == 0
    assert (tmp_path / "o.mp4").exists()


def test_ctrl_c_cancels_the_job_on_the_server(server, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(generate, "POLL_S", 0.01)
    server.waits_for_cancel = True

    def interrupt() -> None:
        server.started.wait(10)
        signal.raise_signal(signal.SIGINT)

    killer = threading.Thread(target=interrupt)
    killer.start()
    assert cli.main(["generate", "p", "-o", str(tmp_path / "o.mp4")]) == 130
    killer.join()
    (request,) = (r for r in server.transport.requests if r["model"] == "minimax_h3")
    assert {"op": "cancel", "id": request["request_id"]} in server.operations
    assert "stopped: job j1 was cancelled" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_bad_place_is_refused_before_anything_is_sent(server, tmp_path: Path, capsys) -> None:
    assert cli.main(["generate", "p", "-o", str(tmp_path)]) == 1
    assert "is a folder" in capsys.readouterr().err
    assert server.transport.requests == []


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ("video_crf", "KEY=JSON"),
        ("=1", "KEY=JSON"),
        ("video_preset=medium", "a text needs quotes"),
        ("prompt=1", "--option prompt=1: prompt is given already, by the prompt; legal: once"),
        ("return_frames=true", "writes MP4 files"),
        ("frames=true", "writes MP4 files"),
        ("video_crf=null", "video_crf=null: null is no value; legal: leave the option out"),
    ],
)
def test_bad_options_are_refused(server, capsys, option: str, complaint: str) -> None:
    assert cli.main(["generate", "p", "--option", option]) == 1
    assert complaint in capsys.readouterr().err
    assert server.transport.requests == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps", "9", "--option", "num_inference_steps=8"], "given already, by --steps"),
        (["--width", "64", "--option", "width=32"], "width is given already, by --width"),
        (["--last", "b.png", "--option", "frame_indices=[-1]"], "by --first and --last, which say"),
        (["--ref", "b.png", "--option", "references=[]"], "references is given already, by --ref"),
        (["--start", "1", "--option", "start_time_seconds=[1]"], "given already, by --start"),
        (["--option", "video_crf=20", "--option", "video_crf=9"], "by another --option"),
    ],
)
def test_a_field_that_is_given_twice_names_both_places(
    server, capsys, words: list[str], message: str
) -> None:
    assert cli.main(["generate", "p", *words]) == 1
    said = capsys.readouterr().err
    assert f"--option {words[-1]}: " in said
    assert message in said
    assert server.transport.requests == []


def test_a_refusal_is_one_line_and_writes_nothing(server, tmp_path: Path, capsys) -> None:
    def refuse(model, request):
        raise H3ClientError("INVALID_ARGUMENT", "width: 33 is not legal; legal: multiples of 32")

    server.transport.answer = refuse
    words = ["generate", "p", "-o", str(tmp_path / "o.mp4"), "--width", "33"]
    assert cli.main(words) == 1
    error = "h3 generate: INVALID_ARGUMENT: width: 33 is not legal; legal: multiples of 32\n"
    assert capsys.readouterr().err == error
    assert list(tmp_path.iterdir()) == []


def test_jobs_list(server, capsys) -> None:
    assert cli.main(["jobs"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["job", "state", "stage", "forwards", "seconds", "request", "id"]
    assert row.split() == ["j1", "running", "denoiser", "5/10", "1.5", "mine"]
    server.job = JOB | {"state": "waiting", "position": 3}
    assert cli.main(["jobs", "list"]) == 0
    assert "position 3" in capsys.readouterr().out
    assert cli.main(["jobs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [server.job]


def test_jobs_get_and_cancel(server, capsys) -> None:
    assert cli.main(["jobs", "get", "mine"]) == 0
    assert json.loads(capsys.readouterr().out) == JOB
    assert cli.main(["jobs", "cancel", "mine"]) == 0
    assert "j1 stops at its next step" in capsys.readouterr().out
    server.job = JOB | {"state": "finished"}
    assert cli.main(["jobs", "cancel", "mine"]) == 1
    assert "j1 is finished already" in capsys.readouterr().out


@pytest.mark.parametrize("action", ["get", "cancel"])
def test_an_unknown_job_is_an_error(server, capsys, action: str) -> None:
    assert cli.main(["jobs", action, "nobody"]) == 1
    assert "NOT_FOUND: the server knows no job nobody" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["get"], ["cancel"], ["list", "j1"]])
def test_jobs_needs_an_id_where_one_is_meant(server, capsys, words: list[str]) -> None:
    with pytest.raises(SystemExit) as usage:
        cli.main(["jobs", *words])
    assert usage.value.code == cli.USAGE
    said = capsys.readouterr().err
    assert said.startswith("usage: h3 jobs")
    assert "legal: list, get ID, cancel ID" in said


@pytest.mark.parametrize(
    ("words", "url", "protocol"),
    [
        ([], "127.0.0.1:8001", "grpc"),
        (["--http"], "127.0.0.1:8000", "http"),
        (["--url", "h:1"], "h:1", "grpc"),
        (["--url", "http://h:1/"], "h:1", "http"),
    ],
)
def test_which_server(words: list[str], url: str, protocol: str) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    connection.add_connection_arguments(parser)
    with connection.connect(parser.parse_args(words)) as client:
        assert (client.url, client.protocol) == (url, protocol)
