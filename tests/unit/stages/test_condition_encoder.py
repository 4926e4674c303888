"""Files -> condition rows: order, equality with the encoders alone, refusals, cancel."""

import hashlib
import io
import json
import logging
import wave
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from PIL import Image

from minimax_h3.core.conditions import AUDIO, DRIVING_AUDIO, IMAGE, KEYFRAME, VIDEO, Condition
from minimax_h3.core.config import StageConfig
from minimax_h3.core.errors import CancelledError, H3Error, InvalidRequestError, NotAvailableError
from minimax_h3.core.plan import Plan, build_plan
from minimax_h3.core.request import GenerationRequest
from minimax_h3.media.facts import inspect
from minimax_h3.media.prepare import load_condition, plan_reference
from minimax_h3.packing.patchify import audio_to_rows, video_to_rows
from minimax_h3.stages.base import StageContext, StageRequest, text_tensor
from minimax_h3.stages.condition_encoder import ConditionEncoderStage

LOG = logging.getLogger("test")


class Jobs:
    """A `jobs` model that cancels at one of its calls."""

    def __init__(self) -> None:
        self.asked = 0
        self.cancel_at = -1

    def __call__(self, model: str, inputs: dict, outputs: list[str]) -> dict:
        assert json.loads(inputs["OP"][0])["op"] == "touch"
        self.asked += 1
        return {"ANSWER": text_tensor(json.dumps({"cancel": self.asked == self.cancel_at}))}


@pytest.fixture(scope="module")
def jobs() -> Jobs:
    return Jobs()


@pytest.fixture(scope="module")
def media_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("media")


@pytest.fixture(scope="module")
def stage(tiny_checkpoint: Path, jobs: Jobs, media_root: Path) -> ConditionEncoderStage:
    config = StageConfig(
        checkpoint_dir=str(tiny_checkpoint), device="cpu", media_root=str(media_root)
    )
    return ConditionEncoderStage.load(StageContext(config, Path("models/stage"), jobs, LOG))


def picture(seed: int) -> bytes:
    y, x = np.mgrid[0:96, 0:64]
    pixels = np.stack([x * (3 + seed), y * 2, x + y], axis=-1) % 256
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def tone(seconds: float, hz: float) -> np.ndarray:
    times = np.arange(round(seconds * 32_000)) / 32_000
    return np.stack([np.sin(2 * np.pi * hz * times), np.cos(2 * np.pi * hz * times)]) / 2


def sound(seconds: float, hz: float) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(2)
        writer.setsampwidth(2)
        writer.setframerate(32_000)
        writer.writeframes((tone(seconds, hz).T * 32_767).astype("<i2").tobytes())
    return file.getvalue()


def clip(frames: int) -> bytes:
    """A 64x64 video of 24 frames a second with a soundtrack of the same length."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        video = container.add_stream("libx264", rate=24)
        video.width, video.height, video.pix_fmt = 64, 64, "yuv420p"
        audio = container.add_stream("aac", rate=32_000, layout="stereo")
        for index in range(frames):
            y, x = np.mgrid[0:64, 0:64]
            pixels = np.stack([x * 3 + index * 4, y * 3, x + y + index], axis=-1) % 256
            frame = av.VideoFrame.from_ndarray(pixels.astype(np.uint8), format="rgb24")
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        samples = np.ascontiguousarray(tone(frames / 24, 300), np.float32)
        block = av.AudioFrame.from_ndarray(samples, format="fltp", layout="stereo")
        block.sample_rate = 32_000
        for part in av.AudioResampler("fltp", "stereo", 32_000, frame_size=1024).resample(block):
            container.mux(audio.encode(part))
        container.mux(audio.encode(None))
    return file.getvalue()


PICTURES = [picture(0), picture(1)]
SOUNDS = [sound(1.25, 220), sound(1.0, 440)]
CLIP = clip(60)


def condition(kind: str, source: int, encoded: bytes, **facts: object) -> Condition:
    return Condition(kind, source, hashlib.sha256(encoded).hexdigest(), **facts)


def shown(kind: str, source: int, encoded: bytes, width: int, height: int) -> Condition:
    facts = {"width": width, "height": height, "num_frames": 1, "presented_frames": 1}
    return condition(kind, source, encoded, **facts)


def make_plan(*conditions: Condition) -> Plan:
    request = GenerationRequest.from_fields({"prompt": "p", "width": 64, "height": 96})
    plan = build_plan(
        request,
        job_id="j",
        alias="",
        text_rows=5,
        flow_shift=12.0,
        audio_flow_shift=3.0,
        received_at=0.0,
    )
    return replace(plan, conditions=conditions)


def run(stage: ConditionEncoderStage, plan: Plan, **files: list[bytes]) -> dict[str, np.ndarray]:
    tensors = {name.upper(): np.array(each, dtype=object) for name, each in files.items()}
    return stage.run(StageRequest({"PLAN": text_tensor(plan.to_json()), **tensors}))


def keyframes() -> tuple[Condition, ...]:
    first = shown(KEYFRAME, 0, PICTURES[0], 64, 96)
    return first, replace(shown(KEYFRAME, 1, PICTURES[1], 64, 96), frame_index=-1)


def test_without_conditions_nothing_is_encoded(stage, monkeypatch) -> None:
    monkeypatch.setattr(stage, "_video", None)
    monkeypatch.setattr(stage, "_audio", None)
    answer = run(stage, make_plan())
    assert answer["CONDITION_ROWS"].shape == (1, 0, 96)
    assert answer["AUDIO_CONDITION_ROWS"].shape == (1, 0, 32)
    assert {answer[name].dtype for name in ("CONDITION_ROWS", "AUDIO_CONDITION_ROWS")} == {
        np.dtype(np.float32)
    }
    facts = json.loads(answer["CONDITION_ENCODER_INFO"][0])
    assert (facts["conditions"], facts["rows"], facts["audio_rows"]) == (0, 0, 0)


def test_keyframes_are_encoded_in_order(stage) -> None:
    plan = make_plan(*keyframes())
    answer = run(stage, plan, keyframes=PICTURES)
    expected = [
        video_to_rows(stage._video.encode(load_condition(each, encoded, plan).frames))
        for each, encoded in zip(plan.conditions, PICTURES, strict=True)
    ]
    assert np.array_equal(answer["CONDITION_ROWS"][0], torch.cat(expected).numpy())
    assert answer["CONDITION_ROWS"].shape == (1, 12, 96)
    assert not np.allclose(expected[0], expected[1], atol=0.1)
    assert answer["AUDIO_CONDITION_ROWS"].shape == (1, 0, 32)
    assert json.loads(answer["CONDITION_ENCODER_INFO"][0])["rows"] == 12


def test_references_keep_their_order_and_a_driving_sound_comes_last(stage) -> None:
    planned = plan_reference(inspect(CLIP, "references[2]"), 2, 124)
    conditions = (
        condition(DRIVING_AUDIO, 0, SOUNDS[0], audio_latents=50),
        shown(IMAGE, 1, PICTURES[0], 96, 64),
        replace(planned, width=64, height=32),
        condition(AUDIO, 3, SOUNDS[1], audio_latents=40),
    )
    files = [SOUNDS[0], PICTURES[0], CLIP, SOUNDS[1]]
    plan = make_plan(*conditions)
    answer = run(stage, plan, references=files)
    media = [load_condition(each, one, plan) for each, one in zip(conditions, files, strict=True)]
    visual = [video_to_rows(stage._video.encode(media[index].frames)) for index in (1, 2)]
    heard = [audio_to_rows(stage._audio.encode(media[index].waveform)) for index in (2, 3, 0)]
    assert [len(rows) for rows in visual] == [6, 17 * 2]
    assert [len(rows) for rows in heard] == [2 * planned.audio_latents, 80, 100]
    assert np.array_equal(answer["CONDITION_ROWS"][0], torch.cat(visual).numpy())
    assert np.array_equal(answer["AUDIO_CONDITION_ROWS"][0], torch.cat(heard).numpy())


def test_a_file_of_the_media_root_equals_its_bytes(stage, media_root: Path) -> None:
    plan = make_plan(*keyframes())
    (media_root / "first.png").write_bytes(PICTURES[0])
    by_name = run(stage, plan, keyframes=[b"file:first.png", PICTURES[1]])
    by_bytes = run(stage, plan, keyframes=PICTURES)
    assert np.array_equal(by_name["CONDITION_ROWS"], by_bytes["CONDITION_ROWS"])


def test_a_file_that_changed_since_it_was_planned_is_refused(stage, media_root: Path) -> None:
    plan = make_plan(keyframes()[0])
    (media_root / "changed.png").write_bytes(PICTURES[1])
    with pytest.raises(InvalidRequestError, match=r"keyframes\[0\]: changed since"):
        run(stage, plan, keyframes=[b"file:changed.png"])
    with pytest.raises(InvalidRequestError, match=r"keyframes\[0\]: 'file:\.\./x' is not legal"):
        run(stage, plan, keyframes=[b"file:../x"])


def test_names_are_refused_without_a_media_root(tiny_checkpoint: Path, jobs: Jobs) -> None:
    config = StageConfig(checkpoint_dir=str(tiny_checkpoint), device="cpu")
    closed = ConditionEncoderStage.load(StageContext(config, Path("models/stage"), jobs, LOG))
    with pytest.raises(NotAvailableError, match="file: names are not served here"):
        run(closed, make_plan(keyframes()[0]), keyframes=[b"file:first.png"])


def test_rows_that_the_plan_does_not_expect_are_an_error(stage) -> None:
    wrong = condition(AUDIO, 0, SOUNDS[1], audio_latents=41)
    with pytest.raises(H3Error, match="80 rows of audio 0, where the plan has 82"):
        run(stage, make_plan(wrong), references=[SOUNDS[1]])


def test_a_cancel_is_seen_between_the_clips_of_a_video(stage, jobs: Jobs, monkeypatch) -> None:
    video = condition(
        VIDEO, 0, CLIP, width=32, height=32, num_frames=56, presented_frames=60, audio_latents=0
    )
    encoded = []
    encode_clip = stage._video._encode_clip
    monkeypatch.setattr(
        stage._video, "_encode_clip", lambda *given: encoded.append(1) or encode_clip(*given)
    )
    jobs.asked, jobs.cancel_at = 0, 3
    try:
        with pytest.raises(CancelledError, match="condition_encoder"):
            run(stage, make_plan(video), references=[CLIP])
    finally:
        jobs.cancel_at = -1
    assert len(encoded) == 2, "of four clips"
