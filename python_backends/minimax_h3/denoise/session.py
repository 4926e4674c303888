"""One clip's denoising: prepared once, then one forward and one Euler update a step.

Everything that no step changes (refined text, rotary table, AdaLN tables, row indices, condition
rows) is made in `prepare`. A step only launches work and never waits for the device.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from minimax_h3.attention.base import AttentionBackend
from minimax_h3.caches.adaln_table import AdaLNTableCache
from minimax_h3.core.conditions import DRIVING_AUDIO, FIRST_FRAME, Condition
from minimax_h3.core.constants import (
    AUDIO_CHANNELS,
    AUDIO_ROW_WIDTH,
    TASK_REF2VA,
    VIDEO_ROW_WIDTH,
)
from minimax_h3.core.errors import H3Error, InvalidRequestError
from minimax_h3.core.plan import Plan
from minimax_h3.dit.adaln import ModulationTable
from minimax_h3.dit.model import MiniMaxH3Transformer, PreparedSequence
from minimax_h3.ops.row_ops import REFERENCE, RowOps
from minimax_h3.packing.layout import PackedLayout, pack_keyframe_request
from minimax_h3.packing.patchify import rows_to_audio, rows_to_video, video_to_rows
from minimax_h3.packing.references import pack_reference_request
from minimax_h3.packing.row_times import ScheduleTimes, schedule_times
from minimax_h3.schedules.euler import EulerStep, euler_step_, euler_steps
from minimax_h3.schedules.noise import Noise, draw_noise, noise_condition
from minimax_h3.schedules.sigma import SigmaSchedule

EulerUpdate: TypeAlias = Callable[[torch.Tensor, torch.Tensor, EulerStep], None]


@dataclass(frozen=True, eq=False, slots=True)
class DitRuntime:
    """What all sessions of one loaded transformer share.

    Attributes:
        model: the weights; their device is the sessions' device.
        attention: the chosen backend.
        tables: AdaLN tables of recent schedules.
        weights_token: names the weights' content, see `AdaLNTableCache.table`.
        row_ops: what computes everything between matrix products and attention.
        euler_step_: moves the target rows, see `schedules.euler`.
    """

    model: MiniMaxH3Transformer
    attention: AttentionBackend
    tables: AdaLNTableCache
    weights_token: str
    row_ops: RowOps = REFERENCE
    euler_step_: EulerUpdate = euler_step_


@dataclass(frozen=True, eq=False, slots=True)
class Conditioning:
    """What the encoders made of a request, on any device.

    `Plan.conditions` says which rows belong to which condition.

    Attributes:
        prompt_embeds: fp32 [L, text_dim].
        text_tags: int64 [L].
        condition_rows: fp32 [Nc, 96], clean; they are noised once, here.
        audio_condition_rows: fp32 [Na, 32], of each reference that has sound, then of the driving
            audio; channel-major each.
    """

    prompt_embeds: torch.Tensor
    text_tags: torch.Tensor
    condition_rows: torch.Tensor
    audio_condition_rows: torch.Tensor


@dataclass(slots=True)
class _Stream:
    """Rows of one stream on the device.

    Attributes:
        rows: held rows first, then those that steps write.
        held: rows that no step writes: conditions, and a target that the request itself gives.
        steps: coefficients of every step.
        result: view of the rows that become latents; they are the last ones.
    """

    rows: torch.Tensor
    held: int
    steps: tuple[EulerStep, ...]
    result: torch.Tensor
    euler_step_: EulerUpdate

    @classmethod
    def build(
        cls,
        conditions: torch.Tensor,
        target: torch.Tensor,
        schedule: SigmaSchedule,
        runtime: DitRuntime,
        *,
        locked: bool = False,
    ) -> "_Stream":
        rows = torch.cat((conditions, target)).to(runtime.model.device)
        count = conditions.shape[0]
        held = rows.shape[0] if locked else count
        return cls(rows, held, euler_steps(schedule), rows[count:], runtime.euler_step_)

    def advance(self, velocity: torch.Tensor, index: int) -> None:
        self.euler_step_(self.rows[self.held :], velocity[self.held :], self.steps[index])


class DenoiseSession:
    """State of one clip. Build it with `prepare`, run `step` for 0 .. `num_forwards` - 1."""

    def __init__(
        self,
        plan: Plan,
        model: MiniMaxH3Transformer,
        prepared: PreparedSequence,
        table: ModulationTable,
        times: ScheduleTimes,
        video: _Stream,
        audio: _Stream,
    ) -> None:
        self._plan = plan
        self._model = model
        self._prepared = prepared
        self._table = table
        self._step_times = times.by_step.to(model.device)
        self._video = video
        self._audio = audio
        self.steps_done = 0

    @classmethod
    def prepare(
        cls, runtime: DitRuntime, plan: Plan, seed: int, conditioning: Conditioning
    ) -> "DenoiseSession":
        """Draw the noise, pack the request and do all work that the steps share.

        Args:
            runtime: the loaded transformer.
            plan: the validated request.
            seed: of this clip.
            conditioning: encoder outputs.

        Raises:
            InvalidRequestError: a tensor does not fit the plan or is not finite; it is named.
        """
        model = runtime.model
        layout = pack(plan, conditioning.text_tags.cpu())
        _check(conditioning, plan, model.config.text_dim)
        video_schedule = SigmaSchedule.build(plan.num_points, plan.flow_shift)
        audio_schedule = SigmaSchedule.build(plan.num_points, plan.audio_flow_shift)
        times = schedule_times(layout, video_schedule.times, audio_schedule.times)
        with torch.inference_mode():
            video, audio = _draw_streams(
                plan, seed, conditioning, (video_schedule, audio_schedule), runtime
            )
            prepared = model.prepare(
                conditioning.prompt_embeds,
                layout,
                times.rows,
                (0, layout.num_rows),
                runtime.attention,
                runtime.row_ops,
            )
            table = runtime.tables.table(model, times.times, runtime.weights_token)
            return cls(plan, model, prepared, table, times, video, audio)

    @property
    def num_forwards(self) -> int:
        """Steps of the whole session."""
        return self._plan.num_forwards

    def step(self, index: int) -> None:
        """Run one forward and move the target rows; condition rows stay as they are.

        Raises:
            InvalidRequestError: not the next step.
        """
        if index != self.steps_done or index >= self.num_forwards:
            legal = self.steps_done if self.steps_done < self.num_forwards else "none, all are done"
            raise InvalidRequestError(
                f"STEP: {index} is not legal; legal: {legal} (of 0 .. {self.num_forwards - 1})"
            )
        with torch.inference_mode():
            modulation = self._table.at(self._step_times[index])
            velocity = self._model.step(
                self._video.rows, self._audio.rows, self._prepared, modulation
            )
            self._video.advance(velocity.video, index)
            self._audio.advance(velocity.audio, index)
        self.steps_done += 1

    def latents(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The target latents as they stand after `steps_done` steps.

        Returns:
            Video [24, T, h, w] and audio [2, 32, A], fp32 on the CPU.

        Raises:
            H3Error: the result is not finite.
        """
        plan = self._plan
        with torch.inference_mode():
            video, audio = self._video.result.cpu(), self._audio.result.cpu()
            for name, rows in (("video", video), ("audio", audio)):
                if not bool(rows.isfinite().all()):
                    raise H3Error(
                        f"the {name} latents are not finite after {self.steps_done} steps"
                    )
            grid = (plan.latent_frames, plan.latent_height, plan.latent_width)
            return rows_to_video(video, *grid).numpy(), rows_to_audio(audio).numpy()


def pack(plan: Plan, text_tags: torch.Tensor) -> PackedLayout:
    """The packed sequence of a plan.

    Args:
        plan: the validated request.
        text_tags: int64 [L] on the CPU.
    """
    locked = _driving_audio(plan) is not None
    packed = [each for each in plan.conditions if each.kind != DRIVING_AUDIO]
    if plan.task == TASK_REF2VA:
        return pack_reference_request(
            text_tags,
            latent_frames=plan.latent_frames,
            height=plan.latent_height,
            width=plan.latent_width,
            audio_latents=plan.audio_latents,
            references=packed,
            audio_locked=locked,
        )
    return pack_keyframe_request(
        text_tags,
        latent_frames=plan.latent_frames,
        height=plan.latent_height,
        width=plan.latent_width,
        audio_latents=plan.audio_latents,
        anchors=["first" if each.frame_index == FIRST_FRAME else "last" for each in packed],
        audio_locked=locked,
    )


def _driving_audio(plan: Plan) -> Condition | None:
    return next((each for each in plan.conditions if each.kind == DRIVING_AUDIO), None)


def select_euler_step(row_ops: RowOps) -> EulerUpdate:
    """The update that goes with the row operations; all of them give the same bits."""
    if row_ops is REFERENCE:
        return euler_step_
    fused: EulerUpdate = importlib.import_module("minimax_h3.ops.kernels.euler").euler_step_
    return fused


def _draw_streams(
    plan: Plan,
    seed: int,
    conditioning: Conditioning,
    schedules: tuple[SigmaSchedule, SigmaSchedule],
    runtime: DitRuntime,
) -> tuple[_Stream, _Stream]:
    """Conditions, then targets: noise, or the driving audio in place of the target sound."""
    visual = [each for each in plan.conditions if each.video_rows]
    noise = draw_noise(
        plan.noise_recipe,
        seed,
        (plan.latent_frames, plan.latent_height, plan.latent_width),
        plan.audio_latents,
        [(each.latent_frames, each.latent_height, each.latent_width) for each in visual],
    )
    sound, target_sound = conditioning.audio_condition_rows.cpu(), noise.audio_rows
    driving = _driving_audio(plan)
    if driving is not None:
        split = sound.shape[0] - AUDIO_CHANNELS * driving.audio_latents
        sound, target_sound = sound[:split], fit_sound(sound[split:], plan.audio_latents)
    anchors = _noised_conditions(conditioning.condition_rows.cpu(), noise)
    return (
        _Stream.build(anchors, video_to_rows(noise.video), schedules[0], runtime),
        _Stream.build(sound, target_sound, schedules[1], runtime, locked=driving is not None),
    )


def _noised_conditions(clean: torch.Tensor, noise: Noise) -> torch.Tensor:
    """Visual conditions mixed to the level they keep; once, so that no step changes their bits."""
    rows = [video_to_rows(latents) for latents in noise.conditions]
    return noise_condition(clean, torch.cat([clean[:0], *rows]))


def fit_sound(rows: torch.Tensor, audio_latents: int) -> torch.Tensor:
    """Cut sound to the target's length, or fill it up with zeros, each channel on its own.

    Args:
        rows: fp32 [2 a, 32], channel-major.
        audio_latents: per channel, A.

    Returns:
        [2 A, 32], channel-major.

    Source: pipeline sheet 3, `lock_source`.
    """
    channels = rows.reshape(AUDIO_CHANNELS, -1, rows.shape[1])[:, :audio_latents]
    missing = audio_latents - channels.shape[1]
    return torch.nn.functional.pad(channels, (0, 0, 0, missing)).reshape(-1, rows.shape[1])


def _check(conditioning: Conditioning, plan: Plan, text_dim: int) -> None:
    """Compare every tensor with the plan, before any work."""
    driving = _driving_audio(plan)
    sound = sum(each.audio_rows for each in plan.conditions)
    sound += AUDIO_CHANNELS * driving.audio_latents if driving else 0
    text = (plan.text_rows, text_dim)
    for name, tensor, shape in (
        ("PROMPT_EMBEDS", conditioning.prompt_embeds, text),
        ("TEXT_TAGS", conditioning.text_tags, text[:1]),
        (
            "CONDITION_ROWS",
            conditioning.condition_rows,
            (sum(each.video_rows for each in plan.conditions), VIDEO_ROW_WIDTH),
        ),
        ("AUDIO_CONDITION_ROWS", conditioning.audio_condition_rows, (sound, AUDIO_ROW_WIDTH)),
    ):
        if tuple(tensor.shape) != shape:
            raise InvalidRequestError(
                f"{name}: shape {list(tensor.shape)} is not legal; legal: {list(shape)}"
            )
        if not bool(tensor.isfinite().all()):
            raise InvalidRequestError(f"{name}: not finite; legal: finite numbers")
