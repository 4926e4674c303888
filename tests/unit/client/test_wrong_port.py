"""A client that is pointed at the port of the other protocol says so, and what to pass."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import pytest

from h3_client import cli
from h3_client.client import H3Client
from h3_client.errors import H3ClientError
from h3_client.stream import ClipStream


class Live(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    do_POST = do_GET  # noqa: N815  # the library's names

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving(kind: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def http_port() -> Iterator[str]:
    with serving(Live) as address:
        yield address


@pytest.fixture(scope="module")
def grpc_port() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


class Metrics(Live):
    """Answers any GET and no POST, like Triton's metrics."""

    def do_POST(self) -> None:
        self.send_response(405)
        self.end_headers()


@pytest.fixture(scope="module")
def metrics_port() -> Iterator[str]:
    with serving(Metrics) as address:
        yield address


def check(error: H3ClientError, address: str, advice: str) -> None:
    assert error.status == "CONNECTION"
    assert address in error.message
    assert advice in error.message
    assert error.message.isprintable()


def test_http_at_the_grpc_port(grpc_port: str) -> None:
    with pytest.raises(H3ClientError) as wrong, H3Client(grpc_port, "http") as client:
        client.generate("a fox")
    check(wrong.value, grpc_port, "speaks gRPC")
    check(wrong.value, grpc_port, "leave out --http")


def test_grpc_at_the_http_port(http_port: str) -> None:
    with pytest.raises(H3ClientError) as wrong, H3Client(http_port) as client:
        client.ping()
    check(wrong.value, http_port, "speaks HTTP")
    check(wrong.value, http_port, "pass --http")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_either_protocol_at_the_metrics_port(metrics_port: str, protocol) -> None:
    with pytest.raises(H3ClientError) as wrong, H3Client(metrics_port, protocol) as client:
        client.generate("a fox")
    check(wrong.value, metrics_port, "speaks HTTP but not Triton's protocol")
    check(wrong.value, metrics_port, "not the metrics'")


def test_health_at_the_metrics_port(metrics_port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["health", "--url", metrics_port]) == 1
    said = capsys.readouterr().out
    assert said.startswith(f"{metrics_port} speaks HTTP but not Triton's protocol")


def test_health_at_the_grpc_port(grpc_port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["health", "--url", grpc_port]) == 1
    advice = "pass Triton's HTTP address, by default port 8000"
    assert capsys.readouterr().out == f"{grpc_port} speaks gRPC, not HTTP; {advice}\n"


def test_health_where_nobody_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["health", "--url", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().out.startswith("127.0.0.1:1 does not answer HTTP: [Errno 111]")


class Other(Live):
    """A web server that is no Triton server."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()


def test_health_at_another_web_server(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Other) as address:
        assert cli.main(["health", "--url", address]) == 1
    assert capsys.readouterr().out.startswith(f"{address} answers /v2/health/live with 404; pass ")


@pytest.mark.parametrize(
    "url", ["127.0.0.1", "127.0.0.1:eight", "nowhere.invalid:8000", "127.0.0.1:99999"]
)
def test_health_at_what_is_no_address(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["health", "--url", url, "--timeout", "2"]) == 1
    (line,) = "".join(capsys.readouterr()).splitlines()
    assert "jobs:" not in line
    assert "--debug" not in line
    assert url in line


def test_the_help_of_health_tells_its_address_from_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["health", "--help"])
    assert "HTTP address" in capsys.readouterr().out


def test_a_stream_at_the_http_port(http_port: str) -> None:
    with pytest.raises(H3ClientError) as wrong, ClipStream(http_port, "a fox") as stream:
        next(iter(stream))
    check(wrong.value, http_port, "speaks HTTP")


def test_a_stream_where_nobody_is() -> None:
    with pytest.raises(H3ClientError) as lost, ClipStream("127.0.0.1:1", "a fox") as stream:
        next(iter(stream))
    check(lost.value, "127.0.0.1:1", "no Triton server answers")


@pytest.mark.parametrize(
    "words", [("health",), ("generate", "a fox", "--http", "--quiet"), ("jobs", "--http")]
)
def test_the_command_line_at_the_grpc_port(
    words: tuple[str, ...], grpc_port: str, capsys: pytest.CaptureFixture[str], tmp_path
) -> None:
    output = ("-o", str(tmp_path / "o.mp4")) if words[0] == "generate" else ()
    assert cli.main([*words, "--url", grpc_port, *output]) == 1
    said = "".join(capsys.readouterr())
    assert f"{grpc_port} speaks gRPC" in said
    assert "by default port 8000" in said
    assert said.replace("\n", "").isprintable()
