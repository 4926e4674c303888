"""Random requests against preprocess, in a process of their own: `random_requests.py FOLDER COUNT`.

Prints JSON: how many were refused, the longest refusal, and how much memory grew in the last half.
"""

import ctypes
import gc
import json
import random
import sys
from pathlib import Path

import numpy as np
import psutil
from preprocess_served import Served, clip_bytes, files, picture_bytes, wav_bytes

from minimax_h3.control.job_table import JobTable
from minimax_h3.control.registry import Limits
from minimax_h3.core.errors import InvalidRequestError, NotAvailableError
from minimax_h3.core.fields import FIELDS, RESERVED_FIELDS
from minimax_h3.stages.base import StageRequest, text_tensor

PROMPTS = ("Picture 1 \N{SNOWMAN}", "", " ", "x" * 9000, "<|image_pad|>", "\0", "a" * 40_000)
ELEMENTS = (b"", b"file:a.png", b"file:../x", b"https://x/", b"RIFF", b"\xff")
BAD_OPTIONS = (b"\xff", b"[", b"[1]", b"9" * 70_000, b"")
NUMBERS = (-1, 0, 1, 2, 5, 32, 50, 64, 96, 107, 124, 200, 362, 363, 768, 8192, 2**31 - 1)
FLOATS = (-1.0, 0.0, 0.5, 2.0, 3.9, 4.0, 5.0, 15.0, 15.1, 24.0, 30.0, 1e30, np.nan, np.inf)
JSON_VALUES = (None, True, 0, -1, 1.5, "", "16:9", [], [0], [0, -1], [[1]], {}, "x" * 300, 1e400)


class RandomRequests:
    """Requests of a seed: mostly legal tensors, often illegal together, sometimes nonsense."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.sources = (
            picture_bytes(48, 40),
            picture_bytes(64, 64, "JPEG"),
            picture_bytes(40, 40, "WEBP"),
            wav_bytes(2.0, 8000),
            clip_bytes(50, side=32),
        )

    def __call__(self) -> dict[str, object]:
        pick = self.random
        tensors: dict[str, object] = {
            "WIDTH": np.array([64], np.int64),
            "HEIGHT": np.array([64], np.int64),
        }
        if pick.random() < 0.98:
            tensors["PROMPT"] = text_tensor(pick.choice(("a fox",) * 40 + PROMPTS))
        if pick.random() < 0.05:
            del tensors[pick.choice(["WIDTH", "HEIGHT"])]
        for name in pick.sample(
            ["WIDTH", "NUM_FRAMES", "NUM_OUTPUTS", "SEED"], int(pick.random() < 0.1)
        ):
            tensors[name] = np.array([pick.choice(NUMBERS)], np.int64)
        if pick.random() < 0.1:
            tensors[pick.choice(["DURATION", "FPS"])] = np.array([pick.choice(FLOATS)], np.float32)
        if pick.random() < 0.05:
            tensors["TASK"] = text_tensor(pick.choice(["t2va", "fl2va", "ref2va", "T2VA", b"\xff"]))
        return tensors | self.media() | self.options()

    def media(self) -> dict[str, object]:
        pick = self.random
        tensors: dict[str, object] = {}
        if pick.random() < 0.3:
            tensors["KEYFRAMES"] = files(*self.elements(pick.choice([0, 1, 1, 2, 2, 3])))
        if pick.random() < 0.3:
            tensors["REFERENCES"] = files(*self.elements(pick.choice([0, 1, 1, 2, 3, 13])))
        if pick.random() < 0.05:
            indices = [pick.choice([0, -1, 1, 7]) for _ in range(pick.randrange(4))]
            tensors["FRAME_INDICES"] = np.array(indices, np.int64)
        if pick.random() < 0.05:
            starts = [pick.choice(FLOATS) for _ in range(pick.randrange(4))]
            tensors["START_TIME_SECONDS"] = np.array(starts, np.float32)
        if pick.random() < 0.15:
            tensors["AUDIO_MODE"] = text_tensor(pick.choice(["native", "lock_source", "loud"]))
        return tensors

    def elements(self, count: int) -> list[bytes]:
        return [self.element() for _ in range(count)]

    def element(self) -> bytes:
        pick = self.random
        source = pick.choice(self.sources)
        match pick.randrange(16):
            case 0:
                return source[: pick.randrange(len(source))]
            case 1:
                broken = bytearray(source)
                for _ in range(pick.randrange(1, 30)):
                    broken[pick.randrange(len(broken))] = pick.randrange(256)
                return bytes(broken)
            case 2:
                return pick.choice(ELEMENTS)
        return source

    def options(self) -> dict[str, object]:
        pick = self.random
        if pick.random() > 0.1:
            return {}
        if pick.random() < 0.2:
            return {"OPTIONS": text_tensor(pick.choice(BAD_OPTIONS))}
        names = pick.sample([*FIELDS, *sorted(RESERVED_FIELDS), "x", ""], pick.randrange(3))
        values = {name: pick.choice((*JSON_VALUES, *NUMBERS)) for name in names}
        return {"OPTIONS": text_tensor(json.dumps(values))}


def resident_bytes() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return psutil.Process().memory_info().rss


def run(checkpoint: Path, count: int) -> dict[str, int]:
    """Serve `count` requests; anything but an answer or a named refusal is an error."""
    served, requests = Served(checkpoint, max_packed_rows=40_000), RandomRequests(1)
    refusals: list[str] = []
    halfway = 0
    for index in range(count):
        served.jobs.table = JobTable(Limits(1, 8, 8, 60.0))
        try:
            served.stage.run(StageRequest(requests()))
        except (InvalidRequestError, NotAvailableError) as refusal:
            if served.jobs.active():
                raise AssertionError("a refused request keeps its place") from refusal
            if ":" not in str(refusal):
                raise AssertionError("a refusal names nothing") from refusal
            refusals.append(str(refusal))
        if index == count // 2:
            halfway = resident_bytes()
    return {
        "refused": len(refusals),
        "longest_refusal": max(map(len, refusals)),
        "grown_bytes": resident_bytes() - halfway,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(Path(sys.argv[1]), int(sys.argv[2]))))
