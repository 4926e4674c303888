"""The ensemble, the adapter and BLS on the real server, with stages that compute nothing."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from fakes.dummy_stages import STEPS, write_dummy_repository
from tritonclient.utils import InferenceServerException

from minimax_h3.core.config import StageConfig
from minimax_h3.core.contracts import ENSEMBLE_STEPS
from minimax_h3.serve.server_process import ServerProcess, ServerStartError
from minimax_h3.serve.settings import ServeSettings
from minimax_h3.serve.stubs import find_stubs

STEP_DELAY_MS = 30
KINDS = {"INT32": np.int32, "INT64": np.int64, "FP32": np.float32, "BOOL": bool, "BYTES": object}
OPTIONAL = {
    "TASK": ("BYTES", b"fl2va"),
    "WIDTH": ("INT64", 64),
    "DURATION": ("FP32", 4.5),
    "SEED": ("INT64", 2**62 + 1),
    "RETURN_FRAMES": ("BOOL", True),
    "OPTIONS": ("BYTES", b'{"a": 1}'),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dummy_repository(tmp_path_factory.mktemp("dummy"), StageConfig())


@pytest.fixture(scope="module")
def dummy(
    serve_settings: Callable[..., ServeSettings], tiny_checkpoint: Path, repository: Path
) -> Iterator[ServerProcess]:
    stage = {"max_jobs": 4, "test_step_delay_ms": STEP_DELAY_MS}
    with ServerProcess(serve_settings(tiny_checkpoint, repository, **stage)) as process:
        yield process
        process.kill()


def tensors(module, prompt: str, **others: tuple) -> list:
    inputs = []
    for name, (kind, value) in ({"PROMPT": ("BYTES", prompt.encode())} | others).items():
        tensor = module.InferInput(name, [1], kind)
        tensor.set_data_from_numpy(np.array([value], dtype=KINDS[kind]))
        inputs.append(tensor)
    return inputs


def generate(process: ServerProcess, prompt: str, request_id: str = "", **others: tuple):
    client = grpcclient.InferenceServerClient(process.grpc_url)
    try:
        inputs = tensors(grpcclient, prompt, **others)
        return client.infer("minimax_h3", inputs, request_id=request_id)
    finally:
        client.close()


def metadata(result) -> dict:
    return json.loads(result.as_numpy("METADATA")[0])


def post(process: ServerProcess, model: str, inputs: dict, outputs: list | None = None):
    body = {
        "inputs": [
            {"name": name, "datatype": kind, "shape": [1], "data": [value]}
            for name, (kind, value) in inputs.items()
        ]
    }
    body |= {} if outputs is None else {"outputs": [{"name": name} for name in outputs]}
    url = f"http://{process.http_url}/v2/models/{model}/infer"
    try:
        with urllib.request.urlopen(url, json.dumps(body).encode()) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def told_to_jobs(process: ServerProcess) -> list[dict]:
    _, answer = post(process, "jobs", {"OP": ("BYTES", '{"op": "list"}')})
    return json.loads(answer["outputs"][0]["data"][0])["operations"]


def test_only_the_prompt_is_required(dummy: ServerProcess) -> None:
    result = generate(dummy, "a red ball", request_id="mine")
    assert result.as_numpy("MP4")[0].startswith(b"h264\x00stream\x00")
    assert result.as_numpy("FRAMES").shape == (0, 0, 0, 0, 3)
    assert result.as_numpy("AUDIO").shape == (1, 2, 5)
    assert metadata(result)["plan"]["fields"] == {"PROMPT": "a red ball"}
    assert metadata(result)["plan"]["alias"] == "mine"


@pytest.mark.parametrize("module", [grpcclient, httpclient])
def test_optional_inputs_of_every_type_arrive(dummy: ServerProcess, module) -> None:
    url = dummy.grpc_url if module is grpcclient else dummy.http_url
    client = module.InferenceServerClient(url)
    result = client.infer("minimax_h3", tensors(module, "p", **OPTIONAL), request_id="id")
    client.close()
    assert result.as_numpy("FRAMES").size > 0
    fields = metadata(result)["plan"]["fields"]
    assert fields == {
        "PROMPT": "p",
        "TASK": "fl2va",
        "WIDTH": 64,
        "DURATION": 4.5,
        "SEED": 2**62 + 1,
        "RETURN_FRAMES": True,
        "OPTIONS": '{"a": 1}',
    }


def test_json_requests(dummy: ServerProcess) -> None:
    inputs = {
        "PROMPT": ("BYTES", "p"),
        "RETURN_FRAMES": ("BOOL", True),
        "SEED": ("INT64", 2**53 + 1),
    }
    status, answer = post(dummy, "minimax_h3", inputs, ["METADATA"])
    assert status == 200
    (output,) = answer["outputs"]
    fields = json.loads(output["data"][0])["plan"]["fields"]
    assert fields == {"PROMPT": "p", "RETURN_FRAMES": True, "SEED": 2**53 + 1}


def test_zero_rows_and_forwarded_tensors_reach_the_dit(dummy: ServerProcess) -> None:
    started = metadata(generate(dummy, "p"))["dit"]
    assert started["shapes"] == {
        "PROMPT_EMBEDS": [1, 5, 8],
        "TEXT_TAGS": [1, 5],
        "CONDITION_ROWS": [1, 0, 96],
        "AUDIO_CONDITION_ROWS": [1, 0, 32],
    }
    assert started["embed_sum"] == 8 * sum(range(5))


@pytest.mark.parametrize("stage", [*ENSEMBLE_STEPS, "dit"])
def test_a_refusal_is_400_with_its_message(dummy: ServerProcess, stage: str) -> None:
    status, answer = post(dummy, "minimax_h3", {"PROMPT": ("BYTES", f"refuse-{stage}")})
    assert status == 400
    expected = f"in ensemble 'minimax_h3', prompt: refused by {stage}; legal: another prompt"
    assert answer == {"error": expected}


def test_a_crash_is_500_and_says_nothing_about_the_inside(dummy: ServerProcess) -> None:
    status, answer = post(dummy, "minimax_h3", {"PROMPT": ("BYTES", "crash-dit")})
    assert status == 500
    expected = "in ensemble 'minimax_h3', dit_fl2va: unexpected RuntimeError; see the server log"
    assert answer == {"error": expected}
    assert "planted crash with a secret" in dummy.launch.log_file.read_text()
    assert told_to_jobs(dummy)[-1]["stage"] == "denoiser"


def test_a_cancel_in_the_loop_keeps_its_code(dummy: ServerProcess) -> None:
    with pytest.raises(InferenceServerException) as stopped:
        generate(dummy, "cancel-in-step")
    assert stopped.value.status() == "StatusCode.CANCELLED"


def test_a_step_after_the_client_has_gone_computes_nothing(dummy: ServerProcess) -> None:
    client = grpcclient.InferenceServerClient(dummy.grpc_url)
    with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
        client.infer(
            "minimax_h3",
            tensors(grpcclient, "left early"),
            request_id="gone",
            client_timeout=STEPS * STEP_DELAY_MS / 1000 / 2,
        )
    client.close()
    deadline = time.monotonic() + 10
    while True:
        ended = [
            entry
            for entry in told_to_jobs(dummy)
            if entry["op"] == "fail" and "-gone-" in entry["job_id"]
        ]
        if ended or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    assert {(entry["stage"], entry["kind"]) for entry in ended} <= {
        ("video_decoder", "cancelled"),
        ("audio_decoder", "cancelled"),
    }
    assert ended


def test_steps_of_jobs_with_one_merge_key_share_an_execute(dummy: ServerProcess) -> None:
    before = _executions(dummy)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda index: generate(dummy, f"p{index}"), range(4)))
    requests, executions = (
        after - earlier for after, earlier in zip(_executions(dummy), before, strict=True)
    )
    assert requests == 4 * (STEPS + 2)
    assert executions < requests


def _executions(process: ServerProcess) -> tuple[int, int]:
    url = f"http://{process.http_url}/v2/models/dit_fl2va/stats"
    with urllib.request.urlopen(url) as answer:
        (stats,) = json.load(answer)["model_stats"]
    return int(stats["inference_count"]), int(stats["execution_count"])


def test_a_broken_model_stops_the_start_and_is_named(
    serve_settings: Callable[..., ServeSettings], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    repository = write_dummy_repository(tmp_path, StageConfig())
    (repository / "muxer" / "1" / "model.py").write_text("import a_module_nobody_has\n")
    process = ServerProcess(serve_settings(tiny_checkpoint, repository, running_jobs=1, max_jobs=1))
    with pytest.raises(ServerStartError) as failure, process:
        pass
    text = str(failure.value)
    assert "muxer: ModuleNotFoundError: No module named 'a_module_nobody_has'" in text
    assert len(text.splitlines()) <= 4


def test_a_dead_jobs_model_breaks_no_answer(dummy: ServerProcess) -> None:
    """The last of this file: nobody gives the server another one."""
    (jobs,) = find_stubs(dummy.pid)["jobs"]
    jobs.kill()
    status, answer = post(dummy, "minimax_h3", {"PROMPT": ("BYTES", "refuse-denoiser")})
    assert status == 400
    assert "refused by denoiser" in answer["error"]
    assert generate(dummy, "p").as_numpy("MP4").size == 1
