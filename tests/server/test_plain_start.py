"""The checkout's repository under a plain tritonserver, asked by the README's curl line."""

import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from minimax_h3.media.check import Expectation, check_mp4
from minimax_h3.serve.installation import find_installation, wheel_folder

ROOT = Path(__file__).resolve().parents[2]
HTTP_PORT = 18_300


@pytest.fixture(scope="module")
def plain_server(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Iterator[str]:
    """`tritonserver --model-repository=...` and nothing else of ours; its HTTP address."""
    if wheel_folder() is None:
        pytest.skip(reason="no tritonserver: the nvidia-pytriton wheel is not installed")
    checkout = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "model_repository", checkout / "model_repository")
    # The committed config.pbtxt files name this path, relative to a model's folder.
    (checkout / "checkpoints").mkdir()
    (checkout / "checkpoints" / "h3-tiny").symlink_to(tiny_checkpoint)
    installation = find_installation(None, checkout / "backends")
    installation.lay_out()
    ports = [f"--{name}-port={HTTP_PORT + i}" for i, name in enumerate(("http", "grpc", "metrics"))]
    command = [str(installation.executable), "--model-repository=model_repository"]
    shell = dict(os.environ)  # noqa: TID251  # a plain start hands it on
    log = checkout / "log"
    with log.open("wb") as sink:
        server = subprocess.Popen(
            [*command, *installation.flags, *ports],
            cwd=checkout,  # a relative repository path, from another folder than the models'
            env={**shell, **installation.environment(shell)},
            stdout=sink,
            stderr=sink,
        )
    address = f"127.0.0.1:{HTTP_PORT}"
    try:
        wait_until_ready(address, server, log)
        yield address
    finally:
        alive = server.poll() is None
        family = psutil.Process(server.pid).children(recursive=True) if alive else []
        server.kill()
        server.wait()
        for stub in family:
            stub.kill()
        psutil.wait_procs(family)


def wait_until_ready(address: str, server: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(f"http://{address}/v2/models/minimax_h3/ready", timeout=1):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    pytest.fail(log.read_text()[-3000:])


def test_the_readmes_curl_line_gets_a_file_that_plays(plain_server: str, tmp_path: Path) -> None:
    for tool in ("curl", "perl"):
        if shutil.which(tool) is None:
            pytest.skip(reason=f"{tool} is not installed")
    readme = (ROOT / "README.md").read_text()
    (line,) = re.findall(r"^curl -s .*$", readme, re.MULTILINE)
    line = line.replace("127.0.0.1:8000", plain_server)
    subprocess.run(["bash", "-c", line], check=True, cwd=tmp_path)
    report = check_mp4(tmp_path / "circle.mp4", Expectation(width=128, height=128, num_frames=124))
    assert report.passed, str(report)


def test_the_other_dit_is_a_shell_that_refuses_by_name(plain_server: str) -> None:
    """The committed configuration serves t2va and fl2va; a plain start loads every folder."""
    ready = f"http://{plain_server}/v2/models/dit_ref2va/ready"
    with urllib.request.urlopen(ready) as answer:
        assert answer.status == 200
    words = {"OP": "step", "SESSION": "s"}
    inputs = [
        {"name": name, "datatype": "BYTES", "shape": [1, 1], "data": [word]}
        for name, word in words.items()
    ]
    step = urllib.request.Request(
        f"http://{plain_server}/v2/models/dit_ref2va/infer", json.dumps({"inputs": inputs}).encode()
    )
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(step)
    assert refusal.value.code == 400
    answer = json.load(refusal.value)["error"]
    assert answer.startswith("dit_ref2va: holds no weights, because task_type is 'fl2va'")
