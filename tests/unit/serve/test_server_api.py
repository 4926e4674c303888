"""Questions to a server over HTTP, and the requests that they are made of."""

import http.server
import json
import threading
from collections.abc import Iterator

import pytest

from h3_client import cli
from minimax_h3.core.contracts import MODELS, PROBE_PARAMETER, WORKER_TOKEN_PARAMETER
from minimax_h3.serve.server_api import ServerApi, ServerApiError, probe_body
from minimax_h3.serve.shutdown import end_jobs


class Handler(http.server.BaseHTTPRequestHandler):
    answers: dict[str, tuple[int, str]] = {}  # noqa: RUF012  # one server a test
    asked: list[tuple[str, dict]] = []  # noqa: RUF012

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        self.asked.append((self.path, body))
        code, text = self.answers.get(self.path, (404, "{}"))
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_POST  # noqa: N815  # the library's names

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def api() -> Iterator[ServerApi]:
    Handler.answers, Handler.asked = {}, []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield ServerApi(f"127.0.0.1:{server.server_port}", "secret")
        server.shutdown()
        thread.join()


def jobs_answer(answer: dict) -> tuple[int, str]:
    return 200, json.dumps({"outputs": [{"data": [json.dumps(answer)]}]})


def test_a_jobs_operation_carries_the_token(api: ServerApi) -> None:
    Handler.answers["/v2/models/jobs/infer"] = jobs_answer({"ok": True})
    assert api.jobs({"op": "ping"}) == {"ok": True}
    ((_, body),) = Handler.asked
    assert body["parameters"] == {WORKER_TOKEN_PARAMETER: "secret"}
    assert json.loads(body["inputs"][0]["data"][0]) == {"op": "ping"}


def test_errors_name_the_question(api: ServerApi) -> None:
    Handler.answers["/v2/repository/models/m/load"] = (400, '{"error":"no weights"}')
    with pytest.raises(ServerApiError, match=r"models/m/load: 400: .*no weights"):
        api.load("m", 5.0)
    Handler.answers["/v2/models/jobs/infer"] = (200, "{}")
    with pytest.raises(ServerApiError, match="is no answer"):
        api.jobs({"op": "ping"})
    with pytest.raises(ServerApiError, match=r"no answer from 127\.0\.0\.1:9"):
        ServerApi("127.0.0.1:9").unload("m")
    assert not ServerApi("127.0.0.1:9").is_ready()


@pytest.mark.parametrize("name", MODELS)
def test_a_probe_fits_the_models_contract(name: str) -> None:
    spec, body = MODELS[name], probe_body(MODELS[name])
    if spec.decoupled:
        assert body == {PROBE_PARAMETER: True}
        return
    assert body["parameters"] == {PROBE_PARAMETER: True}
    given = {tensor["name"]: tensor for tensor in body["inputs"]}
    assert set(given) == {tensor.name for tensor in spec.inputs if not tensor.optional}
    for tensor in spec.inputs:
        if tensor.optional:
            continue
        shape = given[tensor.name]["shape"][1 if spec.max_batch_size else 0 :]
        assert len(shape) == len(tensor.dims)
        assert all(dim in (-1, size) for dim, size in zip(tensor.dims, shape, strict=True))


def test_a_stream_that_answers_with_an_error_is_silent(api: ServerApi) -> None:
    path = "/v2/models/minimax_h3_stream/generate_stream"
    Handler.answers[path] = (200, 'data: {"error":"Stub process is not healthy."}\n\n')
    assert not api.probe("minimax_h3_stream")
    Handler.answers[path] = (200, "")
    assert api.probe("minimax_h3_stream")


def test_jobs_get_their_grace_and_are_cancelled_then(api: ServerApi) -> None:
    left = iter([4, 4, 4, 1, 0])
    path = "/v2/models/jobs/infer"
    said: list[str] = []

    def next_answer() -> tuple[int, str]:
        return jobs_answer({"active": next(left, 0), "sessions": 0})

    class Counting(dict):
        def get(self, key: str, default: object = None) -> tuple[int, str]:
            assert key == path
            return next_answer()

    Handler.answers = Counting()
    assert end_jobs(api, 0.15, lambda: False, said.append)
    operations = [json.loads(body["inputs"][0]["data"][0]) for _, body in Handler.asked]
    assert operations[0] == {"op": "drain"}
    assert {"op": "drain", "cancel": True} in operations
    assert said[0] == "stopping: 4 jobs get up to 0.15 s to finish"


def test_a_second_signal_ends_the_waiting(api: ServerApi) -> None:
    Handler.answers["/v2/models/jobs/infer"] = jobs_answer({"active": 1, "sessions": 1})
    assert not end_jobs(api, 60.0, lambda: True, [].append)


def test_without_jobs_the_server_is_stopped_all_the_same() -> None:
    said: list[str] = []
    assert not end_jobs(ServerApi("127.0.0.1:9"), 60.0, lambda: False, said.append)
    assert said[0].startswith("stopping without ending the jobs")


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"parameters": {"media_root": {"string_value": "/srv/media"}}}, True),
        ({"parameters": {"media_root": {"string_value": ""}}}, False),
        ({}, False),
        (None, False),
    ],
)
def test_health_tells_the_media_root(api, capsys, config: dict | None, told: bool) -> None:
    Handler.answers["/v2/models/jobs/infer"] = jobs_answer({"jobs": []})
    index = json.dumps([{"name": "jobs"}, {"name": "preprocess"}])
    Handler.answers["/v2/repository/index"] = (200, index)
    Handler.answers["/v2/health/live"] = (200, "")
    Handler.answers["/v2/models/preprocess/infer"] = (200, "{}")
    if config is not None:
        Handler.answers["/v2/models/preprocess/config"] = (200, json.dumps(config))
    assert cli.main(["health", "--url", api._address]) == 0
    line = ["requests may name files below /srv/media"] if told else []
    assert capsys.readouterr().out.splitlines() == ["jobs: answers", *line, "preprocess: answers"]
