"""`h3 serve` as a person runs it, with stages that compute nothing."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpcclient
from fakes.dummy_stages import write_dummy_repository
from tritonclient.utils import InferenceServerException

from minimax_h3.core.config import StageConfig
from minimax_h3.core.contracts import models_of
from minimax_h3.serve.launch import STACK_BYTES
from minimax_h3.serve.settings import ServeSettings

H3 = Path(sys.executable).parent / "h3"


@pytest.fixture(scope="module")
def words(
    serve_settings: Callable[..., ServeSettings],
    tiny_checkpoint: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> list[str]:
    repository = write_dummy_repository(tmp_path_factory.mktemp("dummy"), StageConfig())
    settings = serve_settings(tiny_checkpoint, repository)
    return [
        *(str(H3), "serve", "--checkpoint", str(tiny_checkpoint)),
        *("--model-repository", str(repository), "--run-dir", str(settings.run_dir)),
        *("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"),
        *("--running-jobs", "1", "--max-jobs", "1"),
    ]


def wait_for(condition: Callable[[], object], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_ready(http_url: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{http_url}/v2/health/ready") as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.fixture
def serve(words: list[str], tmp_path: Path) -> Iterator[tuple[subprocess.Popen, Path]]:
    """`h3 serve` as a process, and the file its output goes to."""
    output = tmp_path / "output"
    with output.open("wb") as sink:
        process = subprocess.Popen(words, stdout=sink, stderr=subprocess.STDOUT)
    try:
        yield process, output
    finally:
        process.terminate()
        process.wait(60)


def test_ready_line_facts_and_a_clean_stop(serve: tuple[subprocess.Popen, Path]) -> None:
    process, output = serve
    wait_for(lambda: " ready: " in output.read_text() or process.poll() is not None)
    ready = next(line for line in output.read_text().splitlines() if " ready: " in line)
    facts_file = Path(ready.split(" facts ")[1])
    facts = json.loads(facts_file.read_text())
    assert facts["ready"] is True
    assert f"HTTP http://{facts['http_url']} gRPC {facts['grpc_url']}" in ready
    assert is_ready(facts["http_url"])
    tree = psutil.Process(facts["pid"]).children(recursive=True)
    assert len(tree) == len(models_of("fl2va"))  # one instance each
    assert {stub.rlimit(psutil.RLIMIT_STACK)[0] for stub in tree} == {8 * 2**20}
    assert psutil.Process(facts["pid"]).rlimit(psutil.RLIMIT_STACK)[0] >= STACK_BYTES
    prefix = next(flag.split("=")[-1] for flag in facts["command"] if "shm-region" in flag)
    assert len(list(Path("/dev/shm").glob(f"{prefix}*"))) == len(models_of("fl2va"))
    for connection in psutil.Process(facts["pid"]).net_connections(kind="tcp"):
        if connection.status == psutil.CONN_LISTEN:
            assert connection.laddr.ip.removeprefix("::ffff:") == "127.0.0.1"

    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert output.read_text().splitlines()[-1] == "h3 serve: stopped"
    assert not psutil.pid_exists(facts["pid"])
    assert not any(stub.is_running() for stub in tree)
    assert list(Path("/dev/shm").glob(f"{prefix}*")) == []
    assert not facts_file.exists()
    assert Path(facts["log"]).is_file()


def test_the_printed_commands_start_the_same_server(words: list[str], tmp_path: Path) -> None:
    printed = subprocess.run(
        [*words, "--print-command"], check=True, capture_output=True, text=True
    ).stdout
    port = printed.split("--http-port=")[1].split()[0]
    script, log = tmp_path / "start.sh", tmp_path / "log"
    script.write_text(printed)
    with log.open("wb") as sink:
        server = subprocess.Popen(
            ["bash", str(script)], stdout=sink, stderr=sink, start_new_session=True
        )
    try:
        wait_for(lambda: is_ready(f"127.0.0.1:{port}") or server.poll() is not None)
        assert server.poll() is None, log.read_text()
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        prefix = printed.split("shm-region-prefix-name=")[1].split()[0]
        for region in Path("/dev/shm").glob(f"{prefix}*"):
            region.unlink()


def test_a_request_in_flight_hears_that_the_server_stops(
    start_server: Callable,
    serve_settings: Callable[..., ServeSettings],
    tiny_checkpoint: Path,
    tmp_path: Path,
) -> None:
    repository = write_dummy_repository(tmp_path, StageConfig())
    stage = {"running_jobs": 1, "max_jobs": 1, "test_step_delay_ms": 500}
    server = start_server(serve_settings(tiny_checkpoint, repository, **stage))
    prompt = grpcclient.InferInput("PROMPT", [1], "BYTES")
    prompt.set_data_from_numpy(np.array([b"p"], dtype=object))

    def ask() -> None:
        client = grpcclient.InferenceServerClient(server.grpc_url)
        try:
            client.infer("minimax_h3", [prompt])
        finally:
            client.close()

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        wait_for(lambda: server.inference_count("dit_fl2va") > 0)
        server.process.stop()
        with pytest.raises(InferenceServerException) as stopped:
            asked.result()
    assert stopped.value.status() == "StatusCode.UNAVAILABLE"
    assert "the server is stopping" in stopped.value.message()
