"""One whole request through the real `model.py` files, in this process."""

import json
from pathlib import Path

import numpy as np
import pytest
from fakes.ensemble import InferenceError, InProcessServer

from minimax_h3.core.contracts import ENSEMBLE_STEPS, ROUTES
from minimax_h3.stages.base import text_tensor

REPOSITORY = Path(__file__).resolve().parents[3] / "model_repository"
SMALL = {
    "PROMPT": text_tensor("a red ball bounces"),
    "WIDTH": np.array([64], np.int64),
    "HEIGHT": np.array([64], np.int64),
    "NUM_FRAMES": np.array([107], np.int64),
    "NUM_INFERENCE_STEPS": np.array([4], np.int64),
}


@pytest.fixture(autouse=True)
def own_results(tmp_path: Path) -> dict[str, str]:
    return {"results_dir": str(tmp_path / "results")}


def ask_jobs(server: InProcessServer, operation: dict) -> dict:
    answer = server.infer("jobs", {"OP": text_tensor(json.dumps(operation))})
    return json.loads(answer["ANSWER"][0])


def test_a_prompt_becomes_a_file_and_a_wrong_one_a_refusal(
    tiny_checkpoint: Path, own_results: dict[str, str]
) -> None:
    parameters = own_results | {
        "checkpoint_dir": str(tiny_checkpoint),
        "device": "cpu",
        "running_jobs": "1",
        "max_jobs": "1",
    }
    with InProcessServer(REPOSITORY, parameters) as server:
        answer = server.infer("minimax_h3", SMALL, request_id="mine")
        assert answer["MP4"][0][4:8] == b"ftyp"
        assert answer["AUDIO"].shape == (1, 2, 142_400)
        metadata = json.loads(answer["METADATA"][0])
        assert metadata["num_frames"] == 107
        assert metadata["num_forwards"] == 3

        models = [model for model in server.calls if model != "jobs"]
        assert [model for model in models if model not in ROUTES.values()] == list(ENSEMBLE_STEPS)
        assert models.count(ROUTES["t2va"]) >= 1 + 3 + 1  # start, steps, end
        assert ask_jobs(server, {"op": "get", "id": "mine"})["state"] == "finished"
        kept = server.infer("results", {"JOB": text_tensor("mine")})
        assert kept["MP4"][0] == answer["MP4"][0]
        assert kept["METADATA"][0] == answer["METADATA"][0]
        with pytest.raises(InferenceError, match=r"NOT_FOUND: JOB: no result of '../x' is kept"):
            server.infer("results", {"JOB": text_tensor("../x")})

        with pytest.raises(InferenceError) as refusal:
            server.infer("minimax_h3", SMALL | {"FPS": np.array([30], np.float32)})
        assert refusal.value.code == "INVALID_ARG"
        assert "fps: 30.0 is not legal; legal: 24" in refusal.value.message
        with pytest.raises(InferenceError, match="request_id: 5,000 characters are not legal"):
            server.infer("minimax_h3", SMALL, request_id="i" * 5000)
        assert ask_jobs(server, {"op": "ping"})["active"] == 0
