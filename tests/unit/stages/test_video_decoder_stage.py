"""What leaves the video decoder: a stream always, frames only when the request's field asks."""

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from minimax_h3.core.config import StageConfig
from minimax_h3.core.errors import H3Error
from minimax_h3.core.plan import Plan
from minimax_h3.core.warm_up import warm_up_plans
from minimax_h3.stages.base import StageContext, StageRequest, text_tensor
from minimax_h3.stages.video_decoder import VideoDecoderStage
from minimax_h3.vae.outgoing import DecodedClip
from minimax_h3.vae.video_decoder import Wanted

[PLAN] = warm_up_plans("64x64x107")


def jobs(*arguments: object, **options: object) -> dict[str, NDArray[np.generic]]:
    return {"ANSWER": text_tensor("{}")}


@pytest.fixture(scope="module")
def stage(tiny_checkpoint: Path) -> VideoDecoderStage:
    config = StageConfig(checkpoint_dir=str(tiny_checkpoint), device="cpu")
    return VideoDecoderStage.load(
        StageContext(config, tiny_checkpoint, jobs, logging.getLogger("stage"))
    )


def request(plan: Plan, outputs: int = 1) -> StageRequest:
    plan = replace(plan, seeds=tuple(range(outputs)))
    shape = (outputs, 24, plan.latent_frames, plan.latent_height, plan.latent_width)
    latents = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
    return StageRequest({"PLAN": text_tensor(plan.to_json()), "VIDEO_LATENTS": latents})


def pictures(stream: bytes) -> NDArray[np.uint8]:
    with av.open(io.BytesIO(stream)) as file:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)])


@pytest.mark.parametrize("outputs", [1, 2])
def test_frames_come_when_the_field_asks_and_only_then(
    stage: VideoDecoderStage, outputs: int
) -> None:
    silent = stage.run(request(PLAN, outputs))
    asked = stage.run(request(replace(PLAN, return_frames=True), outputs))
    assert silent["FRAMES"].shape == (0, 0, 0, 0, 3)
    assert asked["FRAMES"].shape == (outputs, 107, 64, 64, 3)
    assert [bytes(each) for each in silent["VIDEO_STREAM"]] == [
        bytes(each) for each in asked["VIDEO_STREAM"]
    ]
    facts = json.loads(silent["VIDEO_DECODER_INFO"][0])
    assert facts["peak_bytes"] > 0
    assert 0 <= facts["last_clip_to_file_s"] <= facts["seconds"]


def test_frames_that_were_asked_for_and_are_missing_are_an_error(
    stage: VideoDecoderStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = stage._decoder.decode

    def without_rgb(latents: NDArray[np.float32], wanted: Wanted) -> Iterator[DecodedClip]:
        return (replace(clip, rgb=None) for clip in whole(latents, Wanted(yuv=True)))

    monkeypatch.setattr(stage, "_wanted", lambda plan: Wanted(rgb=False, yuv=True))
    monkeypatch.setattr(stage._decoder, "decode", without_rgb)
    with pytest.raises(H3Error, match="return_frames: frames of 0 of 1 clips"):
        stage.run(request(replace(PLAN, return_frames=True)))


def test_planar_pictures_give_the_same_clip(
    stage: VideoDecoderStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a GPU does, on the CPU: planes of torch instead of libswscale's, equally near."""
    plain = stage.run(request(replace(PLAN, return_frames=True)))
    monkeypatch.setattr(stage, "_wanted", lambda plan: Wanted(rgb=False, yuv=True))
    planar = stage.run(request(PLAN))
    far = [
        np.abs(pictures(answer["VIDEO_STREAM"][0]).astype(np.int16) - plain["FRAMES"][0]).mean()
        for answer in (plain, planar)
    ]
    assert far[1] == pytest.approx(far[0], rel=0.01)
