"""Whole requests through the ensemble in this process, with stages that compute nothing."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from fakes import pb_utils
from fakes.dummy_stages import STEPS, write_dummy_repository
from fakes.ensemble import InferenceError, InProcessServer

from minimax_h3.core.config import StageConfig
from minimax_h3.core.contracts import ENSEMBLE_STEPS
from minimax_h3.stages.base import text_tensor

PROMPT = {"PROMPT": text_tensor("a red ball")}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dummy_repository(tmp_path_factory.mktemp("dummy"), StageConfig(max_jobs=4))


@pytest.fixture
def server(repository: Path) -> Iterator[InProcessServer]:
    with InProcessServer(repository) as running:
        yield running


def operations(server: InProcessServer) -> list[dict]:
    answer = server.infer("jobs", {"OP": text_tensor('{"op": "list"}')})["ANSWER"][0]
    return json.loads(answer)["operations"]


def test_one_request_runs_every_step_and_one_dit(server: InProcessServer) -> None:
    answer = server.infer("minimax_h3", PROMPT, request_id="mine")
    assert answer["MP4"][0].startswith(b"h264\x00stream")
    assert answer["FRAMES"].shape == (0, 0, 0, 0, 3)
    assert answer["AUDIO"].shape == (1, 2, 5)
    metadata = json.loads(answer["METADATA"][0])
    assert metadata["plan"]["alias"] == "mine"
    assert metadata["plan"]["fields"] == {"PROMPT": "a red ball"}
    assert server.calls.count("dit_fl2va") == STEPS + 2
    others = [name for name in server.calls if name not in ("dit_fl2va", "jobs")]
    assert others == list(ENSEMBLE_STEPS)


def test_every_optional_input_arrives(server: InProcessServer) -> None:
    given = {
        "TASK": text_tensor("fl2va"),
        "DURATION": np.array([4.5], np.float32),
        "SEED": np.array([2**62 + 1], np.int64),
        "RETURN_FRAMES": np.array([True]),
        "OPTIONS": text_tensor('{"a": 1}'),
    }
    answer = server.infer("minimax_h3", PROMPT | given, outputs=["METADATA", "FRAMES"])
    assert set(answer) == {"METADATA", "FRAMES"}
    assert answer["FRAMES"].size > 0
    fields = json.loads(answer["METADATA"][0])["plan"]["fields"]
    assert fields["SEED"] == 2**62 + 1
    assert fields["RETURN_FRAMES"] is True
    assert fields["DURATION"] == 4.5


def test_forwarded_tensors_reach_the_dit_and_the_denoiser_does_not_read_them(
    server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: dict[str, int] = {}
    execute = server._execute

    def watched(request: pb_utils.InferenceRequest, config: object) -> pb_utils.InferenceResponse:
        if config.name == "dit_fl2va":
            reads.update({t.name(): t.reads for t in request.inputs() if t.name() not in reads})
        return execute(request, config)

    monkeypatch.setattr(server, "_execute", watched)
    metadata = json.loads(server.infer("minimax_h3", PROMPT)["METADATA"][0])
    assert metadata["dit"]["shapes"]["CONDITION_ROWS"] == [1, 0, 96]
    assert metadata["dit"]["shapes"]["PROMPT_EMBEDS"] == [1, 5, 8]
    for name in ("PROMPT_EMBEDS", "TEXT_TAGS", "CONDITION_ROWS", "AUDIO_CONDITION_ROWS"):
        assert reads[name] == 0, name


@pytest.mark.parametrize("stage", [*ENSEMBLE_STEPS, "dit"])
def test_a_refusal_of_any_stage_keeps_code_and_message(server: InProcessServer, stage: str) -> None:
    with pytest.raises(InferenceError) as refusal:
        server.infer("minimax_h3", {"PROMPT": text_tensor(f"refuse-{stage}")})
    assert refusal.value.code == "INVALID_ARG"
    expected = f"in ensemble 'minimax_h3', prompt: refused by {stage}; legal: another prompt"
    assert refusal.value.message == expected
    told = [] if stage == "preprocess" else ["denoiser" if stage == "dit" else stage]
    assert [entry["stage"] for entry in operations(server) if entry["op"] == "fail"] == told


def test_a_cancel_inside_the_loop_keeps_its_code(server: InProcessServer) -> None:
    with pytest.raises(InferenceError) as refusal:
        server.infer("minimax_h3", {"PROMPT": text_tensor("cancel-in-step")})
    assert refusal.value.code == "CANCELLED"
    assert operations(server)[-1]["kind"] == "cancelled"


def test_a_crash_says_nothing_about_the_inside(server: InProcessServer) -> None:
    with pytest.raises(InferenceError) as failure:
        server.infer("minimax_h3", {"PROMPT": text_tensor("crash-dit")})
    assert failure.value.code == "INTERNAL"
    assert "secret" not in failure.value.message
    assert "dit_fl2va: unexpected RuntimeError; see the server log" in failure.value.message


def test_a_dead_model_fails_only_the_requests_that_need_it(server: InProcessServer) -> None:
    server.dead.add("dit_fl2va")
    with pytest.raises(
        InferenceError, match=r"the process of dit_fl2va died or hung; retry \(.* is not healthy"
    ):
        server.infer("minimax_h3", PROMPT)
    server.dead.clear()
    server.dead.add("jobs")
    assert server.infer("minimax_h3", PROMPT)["MP4"].size


def test_requests_at_once(server: InProcessServer) -> None:
    prompts = [f"prompt {index}" for index in range(6)]

    def ask(prompt: str) -> str:
        answer = server.infer("minimax_h3", {"PROMPT": text_tensor(prompt)})
        return json.loads(answer["METADATA"][0])["plan"]["prompt"]

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, prompts)) == prompts


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"FOO": text_tensor("x")}, "unexpected inference input 'FOO'"),
        ({"WIDTH": np.array([1.0], np.float32)}, "input 'WIDTH' data-type is 'FP32'"),
        ({"WIDTH": np.array([1, 2], np.int64)}, "unexpected shape for input 'WIDTH'"),
    ],
)
def test_the_servers_own_checks(server: InProcessServer, inputs: dict, message: str) -> None:
    with pytest.raises(InferenceError, match=message) as refusal:
        server.infer("minimax_h3", PROMPT | inputs)
    assert refusal.value.code == "INVALID_ARG"
    assert server.calls == []
