"""The examples of docs/requests.md up to the first stage: each is a legal request of its task."""

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
from preprocess_served import Served, clip_bytes, picture_bytes

from h3_client import generate
from h3_client.fields import encode_request
from minimax_h3.core.contracts import REQUEST_INPUTS
from minimax_h3.core.plan import Plan
from minimax_h3.core.request_page import page
from minimax_h3.stages.base import StageRequest

WIRE = {spec.name: spec.dtype.replace("STRING", "BYTES") for spec in REQUEST_INPUTS}


def example(language: str) -> str:
    (text,) = re.findall(rf"```{language}\n(.*?)```", page(), re.DOTALL)
    return text


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of the examples, with the clip that the first one makes."""
    (tmp_path / "t2va.mp4").write_bytes(CLIP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def served(tiny_checkpoint: Path) -> Served:
    return Served(tiny_checkpoint)


def plan_of(served: Served, tensors: dict[str, np.ndarray]) -> Plan:
    return Plan.from_json(served.stage.run(StageRequest(tensors))["PLAN"][0])


def summary(plan: Plan) -> tuple[str, int, int, list[str]]:
    return plan.task, plan.width, plan.height, [one.kind for one in plan.conditions]


CLIP = clip_bytes(124, side=128)
EXPECTED = [
    ("t2va", 128, 128, []),
    ("fl2va", 128, 128, ["keyframe"]),
    ("ref2va", 128, 128, ["video"]),
]


@pytest.mark.usefixtures("folder")
def test_command_lines(served: Served) -> None:
    lines = example("bash").replace("\\\n", "").splitlines()
    made = []
    for line in lines:
        command, *words = shlex.split(line)
        if command == ".venv/bin/python":
            subprocess.run([sys.executable, *words], check=True)
            continue
        assert command.endswith("h3")
        assert words[0] == "generate"
        parser = argparse.ArgumentParser(exit_on_error=False)
        generate.add_arguments(parser)
        fields = generate.request_fields(parser.parse_args(words[1:]))
        tensors = {tensor.name: tensor.values for tensor in encode_request(fields)}
        made.append(summary(plan_of(served, tensors)))
    assert made == EXPECTED


@pytest.mark.usefixtures("folder")
def test_python(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Answer:
        def as_numpy(self, name: str) -> list[bytes]:
            assert name == "MP4"
            return [CLIP]

    class Server:
        """Takes what the stock client would send to a server."""

        def __init__(self, url: str) -> None:
            assert url == "127.0.0.1:8001"

        def infer(self, model: str, inputs: list[tritonclient.grpc.InferInput]) -> Answer:
            assert model == "minimax_h3"
            assert all(WIRE[one.name()] == one.datatype() for one in inputs)
            tensors = {}
            for one in inputs:
                raw = one._get_content()  # the client keeps no array
                decode = tritonclient.utils.deserialize_bytes_tensor
                as_numbers = tritonclient.utils.triton_to_np_dtype(one.datatype())
                is_text = one.datatype() == "BYTES"
                tensors[one.name()] = decode(raw) if is_text else np.frombuffer(raw, as_numbers)
            made.append(summary(plan_of(served, tensors)))
            return Answer()

    monkeypatch.setattr(tritonclient.grpc, "InferenceServerClient", Server)
    Path("first.png").write_bytes(picture_bytes(128, 128))
    names: dict[str, object] = {}
    exec(compile(example("python"), "requests.md", "exec"), names)
    assert made == EXPECTED
    assert {names[task] for task, *_ in EXPECTED} == {CLIP}
