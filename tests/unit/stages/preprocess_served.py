"""A loaded preprocess stage beside a real job table, and files made in memory."""

import io
import json
import logging
import wave
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from minimax_h3.control.job_table import JobTable
from minimax_h3.control.registry import Limits
from minimax_h3.core.config import StageConfig
from minimax_h3.core.plan import Plan
from minimax_h3.stages.base import StageContext, StageRequest, Tensors, text_tensor
from minimax_h3.stages.preprocess import PreprocessStage

LOG = logging.getLogger("test")
SMALL = {"WIDTH": np.array([64], np.int64), "HEIGHT": np.array([64], np.int64)}
Answer = dict[str, NDArray[np.generic]]


class Jobs:
    """Answers `jobs` from a real table."""

    def __init__(self, max_jobs: int = 8) -> None:
        self.table = JobTable(Limits(1, max_jobs, 8, 60.0))

    def __call__(self, model: str, inputs: Tensors, outputs: Sequence[str]) -> Answer:
        operation = json.loads(np.asarray(inputs["OP"]).reshape(-1)[0])
        return {"ANSWER": text_tensor(json.dumps(self.table.handle(operation)))}

    def active(self) -> int:
        return int(str(self.table.handle({"op": "ping"})["active"]))


class Served:
    """A loaded stage and the jobs model it speaks to."""

    def __init__(self, checkpoint: Path, **config: object) -> None:
        self.jobs = Jobs()
        values = {"checkpoint_dir": str(checkpoint), "task_type": "combined"} | config
        context = StageContext(StageConfig(**values), checkpoint, self.jobs, LOG)
        self.stage = PreprocessStage.load(context)

    def run(self, prompt: str = "a fox", **tensors: object) -> tuple[Plan, Answer]:
        """One request; a tensor that is None is left out."""
        given = {"PROMPT": text_tensor(prompt), **SMALL, **tensors}
        given = {name: value for name, value in given.items() if value is not None}
        answer = self.stage.run(StageRequest(given))
        return Plan.from_json(answer["PLAN"][0]), answer


def files(*encoded: bytes) -> NDArray[np.generic]:
    """A STRING tensor with one element a file."""
    tensor = np.empty(len(encoded), dtype=object)
    tensor[:] = encoded
    return tensor


def picture_bytes(width: int, height: int, form: str = "PNG") -> bytes:
    """A picture of one colour."""
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 30)).save(buffer, form)
    return buffer.getvalue()


def wav_bytes(seconds: float = 3.0, rate_hz: int = 16_000, hz: float = 440.0) -> bytes:
    """A mono tone."""
    buffer = io.BytesIO()
    times = np.arange(round(seconds * rate_hz)) / rate_hz
    with wave.open(buffer, "wb") as file:
        file.setparams((1, 2, rate_hz, 0, "NONE", ""))
        file.writeframes((8000 * np.sin(2 * np.pi * hz * times)).astype("<i2").tobytes())
    return buffer.getvalue()


def clip_bytes(frames: int, fps: Fraction = Fraction(24), side: int = 64) -> bytes:
    """A silent H.264 clip whose brightness rises frame by frame."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=fps, options={"preset": "ultrafast"})
        stream.width = stream.height = side
        stream.pix_fmt = "yuv420p"
        for index in range(frames):
            picture = np.full((side, side, 3), index * 3 % 256, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return buffer.getvalue()
