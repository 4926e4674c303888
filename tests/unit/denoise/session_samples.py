"""Plans and conditioning of a small session, for the tests of sessions."""

from dataclasses import replace

import numpy as np
import torch
from oracles.diffusers_dit import ATTENTION, CONVERTER, random_transformer

from minimax_h3.caches.adaln_table import AdaLNTableCache
from minimax_h3.core.conditions import (
    AUDIO,
    DRIVING_AUDIO,
    IMAGE,
    KEYFRAME,
    LAST_FRAME,
    VIDEO,
    Condition,
)
from minimax_h3.core.plan import Plan
from minimax_h3.denoise.session import Conditioning, DenoiseSession, DitRuntime

MODEL = random_transformer(CONVERTER)
TEXT_ROWS = 5
PLAN = Plan(
    job_id="job",
    alias="",
    task="t2va",
    width=96,
    height=64,
    num_frames=22,
    latent_frames=7,
    latent_height=4,
    latent_width=6,
    audio_latents=9,
    text_rows=TEXT_ROWS,
    packed_rows=TEXT_ROWS + 18 + 42,
    num_points=50,
    flow_shift=12.0,
    audio_flow_shift=3.0,
    seeds=(3,),
    noise_recipe="single_stream",
    return_frames=False,
    video_preset="veryfast",
    video_crf=18,
    received_at=0.0,
)
SHORT = replace(PLAN, num_points=5)

FIRST = Condition(KEYFRAME, 0, "", 96, 64, num_frames=1)
LAST = replace(FIRST, frame_index=LAST_FRAME)
PICTURE = Condition(IMAGE, 0, "", 64, 128, num_frames=1)
SILENT_VIDEO = Condition(VIDEO, 0, "", 64, 32, num_frames=39)
VIDEO_WITH_SOUND = replace(SILENT_VIDEO, num_frames=22, audio_latents=37)
SOUND = Condition(AUDIO, 0, "", audio_latents=6)
DRIVER = Condition(DRIVING_AUDIO, 0, "", audio_latents=9)
KEYFRAMES = {"first": [FIRST], "last": [LAST], "both": [FIRST, LAST]}
REFERENCES = {
    "image": [PICTURE],
    "video with sound": [VIDEO_WITH_SOUND],
    "image, video, sound": [PICTURE, VIDEO_WITH_SOUND, SOUND],
    "three images": [PICTURE, replace(PICTURE, width=96, height=32), PICTURE],
    "image and sound": [PICTURE, SOUND],
    "sound first, silent video": [SOUND, SILENT_VIDEO],
}


def random_rows(rows: int, width: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def plan_with(*conditions: Condition, points: int = 5) -> Plan:
    references = any(each.kind not in (KEYFRAME, DRIVING_AUDIO) for each in conditions)
    task = "ref2va" if references else "fl2va" if conditions else "t2va"
    return replace(PLAN, task=task, num_points=points, conditions=conditions)


def conditioning(*conditions: Condition) -> Conditioning:
    tags = torch.ones(TEXT_ROWS, dtype=torch.int64)
    tags[1:3] = 0
    sound = sum(2 * each.audio_latents for each in conditions)
    return Conditioning(
        prompt_embeds=random_rows(TEXT_ROWS, 48, 4),
        text_tags=tags,
        condition_rows=random_rows(sum(each.video_rows for each in conditions), 96, 5),
        audio_condition_rows=random_rows(sound, 32, 6),
    )


def runtime() -> DitRuntime:
    return DitRuntime(MODEL, ATTENTION, AdaLNTableCache(), "random")


def run(session: DenoiseSession) -> tuple[np.ndarray, np.ndarray]:
    for index in range(session.steps_done, session.num_forwards):
        session.step(index)
    return session.latents()
