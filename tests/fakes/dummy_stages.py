"""Stand-in stages without weights: they keep the tensor contract and compute nothing.

`write_dummy_repository` lays out a model repository that serves them through the real adapter.
Words in the prompt make a stage misbehave: `refuse-<stage>` raises a user's error there,
`crash-<stage>` an unexpected one, `slow` takes a while per step.
"""

import json
import time
from pathlib import Path
from typing import ClassVar

import numpy as np

from minimax_h3.core.config import StageConfig
from minimax_h3.core.constants import VISION_PATCH_WIDTH
from minimax_h3.core.contracts import MODELS, ROUTES
from minimax_h3.core.errors import CancelledError, H3Error, InvalidRequestError, UnknownSessionError
from minimax_h3.stages.base import StageContext, StageRequest, text_tensor
from minimax_h3.triton_io.render import write_repository

EMBED_WIDTH, TEXT_ROWS, STEPS = 8, 5, 4
FRAMES_SHAPE = (1, 2, 4, 6, 3)
FORWARDED = ("PROMPT_EMBEDS", "TEXT_TAGS", "CONDITION_ROWS", "AUDIO_CONDITION_ROWS")


class DummyStage:
    """Loads without anything; `plan` reads the job, and misbehaves when the prompt says so."""

    name: ClassVar[str] = ""

    def __init__(self, context: StageContext) -> None:
        self.context = context

    @classmethod
    def load(cls, context: StageContext) -> "DummyStage":
        return cls(context)

    def plan(self, request: StageRequest) -> dict:
        plan = json.loads(request.text("PLAN"))
        self.misbehave(plan["prompt"])
        return plan

    def misbehave(self, prompt: str) -> None:
        if f"refuse-{self.name}" in prompt:
            raise InvalidRequestError(f"prompt: refused by {self.name}; legal: another prompt")
        if f"crash-{self.name}" in prompt:
            raise RuntimeError(f"planted crash with a secret in {self.name}")


class DummyPreprocess(DummyStage):
    name = "preprocess"

    def run(self, request: StageRequest) -> dict:
        given = {name: array.reshape(-1)[0] for name, array in request.tensors.items()}
        fields = {
            name: value.decode() if isinstance(value, bytes) else value.item()
            for name, value in given.items()
        }
        prompt = fields["PROMPT"]
        self.misbehave(prompt)
        job_id = f"job-{request.request_id or 'anonymous'}-{time.monotonic_ns()}"
        plan = {
            "job_id": job_id,
            "alias": request.request_id,
            "prompt": prompt,
            "fields": fields,
            "return_frames": bool(fields.get("RETURN_FRAMES", False)),
        }
        return {
            "PLAN": text_tensor(json.dumps(plan)),
            "TASK": text_tensor(fields.get("TASK", "t2va")),
            "TOKEN_IDS": np.arange(TEXT_ROWS, dtype=np.int64),
            "TEXT_TAGS": np.ones((1, TEXT_ROWS), np.int64),
            "PIXEL_VALUES": np.zeros((0, VISION_PATCH_WIDTH), np.uint8),
            "IMAGE_GRID_THW": np.zeros((0, 3), np.int64),
            "VIDEO_GRID_THW": np.zeros((0, 3), np.int64),
        }


class DummyTextEncoder(DummyStage):
    name = "text_encoder"

    def run(self, request: StageRequest) -> dict:
        self.plan(request)
        rows = request.array("TOKEN_IDS").astype(np.float32)[None, :, None]
        return {
            "PROMPT_EMBEDS": np.repeat(rows, EMBED_WIDTH, axis=2),
            "TEXT_ENCODER_INFO": text_tensor("{}"),
        }


class DummyConditionEncoder(DummyStage):
    name = "condition_encoder"

    def run(self, request: StageRequest) -> dict:
        self.plan(request)
        return {
            "CONDITION_ROWS": np.zeros((1, 0, 96), np.float32),
            "AUDIO_CONDITION_ROWS": np.zeros((1, 0, 32), np.float32),
            "CONDITION_ENCODER_INFO": text_tensor("{}"),
        }


class DummyDenoiser(DummyStage):
    name = "denoiser"

    def run(self, request: StageRequest) -> dict:
        plan = self.plan(request)
        model = ROUTES[request.text("TASK")]
        session = {"SESSION": text_tensor(plan["job_id"])[None]}
        forwarded = {name: request.tensors[name] for name in FORWARDED}
        start = {"SESSION_PLAN": text_tensor(json.dumps(plan))[None], **forwarded}
        state = self.dit(model, "start", {**session, **start}, ["STATE"])
        started = json.loads(state["STATE"].reshape(-1)[0])
        for step in range(STEPS):
            self.dit(model, "step", {**session, "STEP": np.full((1, 3), step, np.int32)}, ["STATE"])
        latents = self.dit(model, "end", session, ["STATE", "VIDEO_LATENTS", "AUDIO_LATENTS"])
        return {
            "VIDEO_LATENTS": latents["VIDEO_LATENTS"],
            "AUDIO_LATENTS": latents["AUDIO_LATENTS"],
            "DENOISER_INFO": text_tensor(json.dumps(started)),
        }

    def dit(self, model: str, op: str, tensors: dict, outputs: list[str]) -> dict:
        return self.context.call(model, {"OP": text_tensor(op)[None], **tensors}, outputs)


class DummyDit(DummyStage):
    """Sessions without maths; one bad session of an `execute()` does not touch the others."""

    name = "dit"

    def __init__(self, context: StageContext) -> None:
        super().__init__(context)
        self.sessions: dict[str, dict] = {}

    def run_batch(self, requests: list[StageRequest]) -> list[dict | H3Error]:
        if any(request.text("OP") == "step" for request in requests):
            time.sleep(self.context.config.test_step_delay_ms / 1000)
        return [self.answer(request, len(requests)) for request in requests]

    def answer(self, request: StageRequest, batch_size: int) -> dict | H3Error:
        try:
            return self.serve(request, batch_size)
        except H3Error as error:
            return error

    def serve(self, request: StageRequest, batch_size: int) -> dict:
        op, session_id = request.text("OP"), request.text("SESSION")
        if op == "start":
            plan = json.loads(request.text("SESSION_PLAN"))
            self.misbehave(plan["prompt"])
            arrived = {name: request.array(name) for name in FORWARDED}
            self.sessions[session_id] = {"plan": plan, "step": 0}
            return _state(
                shapes={name: list(array.shape) for name, array in arrived.items()},
                embed_sum=float(arrived["PROMPT_EMBEDS"].sum()),
            )
        if session_id not in self.sessions:
            raise UnknownSessionError(f"session {session_id}: unknown")
        session = self.sessions[session_id]
        if op == "step":
            if "cancel-in-step" in session["plan"]["prompt"]:
                raise CancelledError("cancelled between two steps")
            session["step"] += 1
            return _state(step=session["step"], batch_size=batch_size)
        del self.sessions[session_id]
        return {
            **_state(step=session["step"]),
            "VIDEO_LATENTS": np.full((1, 24, 2, 4, 6), session["step"], np.float32),
            "AUDIO_LATENTS": np.full((1, 2, 32, 7), session["step"], np.float32),
        }


class DummyVideoDecoder(DummyStage):
    name = "video_decoder"

    def run(self, request: StageRequest) -> dict:
        plan = self.plan(request)
        shape = FRAMES_SHAPE if plan["return_frames"] else (0, 0, 0, 0, 3)
        return {
            "VIDEO_STREAM": text_tensor(b"h264\x00stream"),
            "FRAMES": np.full(shape, 7, np.uint8),
            "VIDEO_DECODER_INFO": text_tensor("{}"),
        }


class DummyAudioDecoder(DummyStage):
    name = "audio_decoder"

    def run(self, request: StageRequest) -> dict:
        self.plan(request)
        return {
            "AUDIO": np.full((1, 2, 5), 0.25, np.float32),
            "AUDIO_DECODER_INFO": text_tensor("{}"),
        }


class DummyMuxer(DummyStage):
    name = "muxer"

    def run(self, request: StageRequest) -> dict:
        plan = self.plan(request)
        started = json.loads(request.text("DENOISER_INFO"))
        audio = request.array("AUDIO").tobytes()
        return {
            "MP4": text_tensor(bytes(request.array("VIDEO_STREAM")[0]) + audio),
            "METADATA": text_tensor(json.dumps({"plan": plan, "dit": started})),
        }


class DummyJobs(DummyStage):
    """Keeps every operation; `list` gives them back."""

    name = "jobs"

    def __init__(self, context: StageContext) -> None:
        super().__init__(context)
        self.operations: list[dict] = []

    def run(self, request: StageRequest) -> dict:
        operation = json.loads(request.text("OP"))
        if operation["op"] == "list":
            return {"ANSWER": text_tensor(json.dumps({"operations": self.operations}))}
        if operation["op"] == "crash":
            raise RuntimeError("planted crash of jobs")
        self.operations.append(operation)
        return {"ANSWER": text_tensor(json.dumps({"ok": True}))}


class DummyResults(DummyStage):
    name = "results"

    def run(self, request: StageRequest) -> dict:
        return {"MP4": text_tensor(request.text("JOB")), "METADATA": text_tensor("{}")}


STAGES = {
    "preprocess": DummyPreprocess,
    "text_encoder": DummyTextEncoder,
    "condition_encoder": DummyConditionEncoder,
    "denoiser": DummyDenoiser,
    "dit_fl2va": DummyDit,
    "dit_ref2va": DummyDit,
    "video_decoder": DummyVideoDecoder,
    "audio_decoder": DummyAudioDecoder,
    "muxer": DummyMuxer,
    "jobs": DummyJobs,
    "results": DummyResults,
}


def write_dummy_repository(repository: Path, config: StageConfig) -> Path:
    """A repository whose models are these stages; this file lies beside each `model.py`."""
    write_repository(repository, config)
    for name in MODELS:
        version = repository / name / "1"
        version.mkdir(exist_ok=True)
        if name == "minimax_h3_stream":  # the real one computes nothing either
            shim = Path(__file__).resolve().parents[2] / "model_repository" / name / "1/model.py"
            (version / "model.py").write_bytes(shim.read_bytes())
            continue
        (version / "dummy_stages.py").write_bytes(Path(__file__).read_bytes())
        (version / "model.py").write_text(
            "from dummy_stages import STAGES\n"
            "from minimax_h3.triton_io.adapter import stage_model\n"
            f'TritonPythonModel = stage_model(STAGES["{name}"])\n'
        )
    return repository


def _state(**facts: object) -> dict:
    return {"STATE": text_tensor(json.dumps({"ready": True, **facts}))[None]}
