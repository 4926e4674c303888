"""The plan: a validated request with every derived number, as one JSON text between the stages."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from minimax_h3.core.conditions import Condition, condition_rows
from minimax_h3.core.constants import VAE_SPATIAL_STRIDE
from minimax_h3.core.lengths import (
    audio_latents_from_frames,
    audio_rows,
    latents_from_frames,
    video_rows,
)
from minimax_h3.core.request import GenerationRequest


@dataclass(frozen=True, slots=True)
class Plan:
    """What every stage may know about a job.

    Attributes:
        job_id: made by the server; `alias` is the client's request id, or empty.
        latent_frames, latent_height, latent_width: video latent grid, T, H/16, W/16.
        audio_latents: per channel, A.
        text_rows: presentation tokens, L.
        packed_rows: rows of one forward, text included.
        seeds: one per clip.
        conditions: keyframes or references, in the caller's order; empty for t2va.
        received_at: wall-clock seconds since the epoch at which preprocess got the request.
        preprocess_s: seconds preprocess took.
        priority, deadline_s, client: see `core.request`; the deadline counts from `received_at`.
    """

    job_id: str
    alias: str
    task: str
    width: int
    height: int
    num_frames: int
    latent_frames: int
    latent_height: int
    latent_width: int
    audio_latents: int
    text_rows: int
    packed_rows: int
    num_points: int
    flow_shift: float
    audio_flow_shift: float
    seeds: tuple[int, ...]
    noise_recipe: str
    return_frames: bool
    video_preset: str
    video_crf: int
    received_at: float
    preprocess_s: float = 0.0
    conditions: tuple[Condition, ...] = ()
    priority: str = "normal"
    deadline_s: float | None = None
    client: str = ""

    @property
    def num_forwards(self) -> int:
        """Model calls per clip: one fewer than sigma points."""
        return self.num_points - 1

    def to_json(self) -> str:
        """Serialise for the PLAN tensor."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> "Plan":
        """Inverse of `to_json`; the text comes from our own preprocess, so a wrong one is a bug."""
        values = json.loads(text)
        values["seeds"] = tuple(values["seeds"])
        values["conditions"] = tuple(Condition(**fields) for fields in values["conditions"])
        return cls(**values)


def packed_rows(
    request: GenerationRequest, text_rows: int, conditions: Sequence[Condition] = ()
) -> int:
    """Rows of one forward: text + conditions + sound + picture."""
    return (
        text_rows
        + condition_rows(conditions)
        + audio_rows(request.num_frames)
        + video_rows(request.width, request.height, request.num_frames)
    )


def build_plan(
    request: GenerationRequest,
    *,
    job_id: str,
    alias: str,
    text_rows: int,
    flow_shift: float,
    audio_flow_shift: float,
    received_at: float,
    conditions: Sequence[Condition] = (),
) -> Plan:
    """Derive the plan of a validated request; the two shifts are the checkpoint's own."""
    return Plan(
        job_id=job_id,
        alias=alias,
        task=request.task,
        width=request.width,
        height=request.height,
        num_frames=request.num_frames,
        latent_frames=latents_from_frames(request.num_frames),
        latent_height=request.height // VAE_SPATIAL_STRIDE,
        latent_width=request.width // VAE_SPATIAL_STRIDE,
        audio_latents=audio_latents_from_frames(request.num_frames),
        text_rows=text_rows,
        packed_rows=packed_rows(request, text_rows, conditions),
        num_points=request.num_points,
        flow_shift=flow_shift if request.flow_shift is None else request.flow_shift,
        audio_flow_shift=(
            audio_flow_shift if request.audio_flow_shift is None else request.audio_flow_shift
        ),
        seeds=tuple(request.seed + clip for clip in range(request.num_outputs)),
        noise_recipe=request.noise_recipe,
        return_frames=request.return_frames,
        video_preset=request.video_preset,
        video_crf=request.video_crf,
        received_at=received_at,
        conditions=tuple(conditions),
        priority=request.priority,
        deadline_s=request.deadline_s,
        client=request.client,
    )
