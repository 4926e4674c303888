"""How far a whole t2va clip is from diffusers on the same weights and noise, stage by stage.

Run: python tests/benchmarks/bench_equality.py CHECKPOINT [--json FILE]
CHECKPOINT is an official layout; FP32 on the CPU, 49 forwards, noise in diffusers' draw order.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from fakes.ensemble import run_stage_by_stage  # noqa: E402  # a test folder, no package
from oracles.diffusers_pipeline import ReferencePipeline  # noqa: E402

WIDTH, HEIGHT, FRAMES, SEED = 96, 64, 124, 11
PROMPT = "a red ball bounces on a blue floor"


REQUEST = {
    "PROMPT": np.array([PROMPT.encode()], dtype=object),
    "WIDTH": np.array([WIDTH], np.int64),
    "HEIGHT": np.array([HEIGHT], np.int64),
    "NUM_FRAMES": np.array([FRAMES], np.int64),
    "SEED": np.array([SEED], np.int64),
    "RETURN_FRAMES": np.array([True]),
    "OPTIONS": np.array([b'{"noise_recipe": "single_stream"}'], dtype=object),
}


def differences(checkpoint: Path) -> dict[str, float]:
    """Largest differences, and the scale they stand against."""
    with tempfile.TemporaryDirectory() as folder:
        converted = Path(folder) / "diffusers"
        convert = ["build_engines", "convert", str(checkpoint), str(converted), "--to", "diffusers"]
        subprocess.run([sys.executable, "-m", *convert], check=True, cwd=ROOT, capture_output=True)
        reference = ReferencePipeline(converted).generate(
            PROMPT, WIDTH, HEIGHT, FRAMES, num_points=50, seed=SEED
        )
    ours = run_stage_by_stage(checkpoint, REQUEST, device="cpu")
    pixels = np.abs(ours["FRAMES"][0].astype(int) - reference.frames.astype(int))
    video = ours["VIDEO_LATENTS"][0] - reference.video_latents
    audio = ours["AUDIO_LATENTS"][0] - reference.audio_latents
    return {
        "video_latents_max_abs": float(np.abs(video).max()),
        "video_latents_scale": float(np.abs(reference.video_latents).max()),
        "audio_latents_max_abs": float(np.abs(audio).max()),
        "audio_latents_scale": float(np.abs(reference.audio_latents).max()),
        "pixels_max_levels": int(pixels.max()),
        "pixels_differing_share": float((pixels > 0).any(axis=-1).mean()),
        "wave_max_abs": float(np.abs(ours["AUDIO"][0] - reference.wave).max()),
        "wave_scale": float(np.abs(reference.wave).max()),
    }


def main() -> None:
    """Print the figures, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    figures = differences(arguments.checkpoint.resolve())
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
