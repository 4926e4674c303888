"""Clips by the library alone: the serving code of every stage, without a server."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from build_engines.evaluation.cases import Case
from build_engines.evaluation.objects import Frames
from build_engines.evaluation.tones import Wave
from build_engines.train_tiny.documents import REFERENCE_TASKS
from minimax_h3.attention.base import select
from minimax_h3.caches.adaln_table import AdaLNTableCache
from minimax_h3.core.conditions import Condition
from minimax_h3.core.constants import (
    AUDIO_HOP_SAMPLES,
    AUDIO_ROW_WIDTH,
    TASK_FL2VA,
    TASK_REF2VA,
    VIDEO_ROW_WIDTH,
)
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.core.plan import Plan
from minimax_h3.denoise.session import (
    Conditioning,
    DenoiseSession,
    DitRuntime,
    select_euler_step,
)
from minimax_h3.dit.loading import load_transformer
from minimax_h3.ops.row_ops import select_row_ops
from minimax_h3.packing.patchify import audio_to_rows, video_to_rows
from minimax_h3.text.presentation import Block, blocks_of, present_request
from minimax_h3.text.qwen import TruncatedQwen3VL
from minimax_h3.text.tokenizer import load_tokenizer
from minimax_h3.text.vision_inputs import vision_inputs
from minimax_h3.text.vision_pixels import pack_pixels
from minimax_h3.text.vision_rules import load_vision_rules
from minimax_h3.vae.loading import (
    load_audio_encoder,
    load_audio_vae,
    load_video_encoder,
    load_video_vae,
)
from minimax_h3.weights.manifest import CheckpointManifest, identify, official_partitions

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Profile:
    """How clips are made; what `--against` varies.

    Attributes:
        points: sigma points, one forward fewer.
        device: of everything.
        dtype: fp32 or bf16; auto is fp32 on a CPU, bf16 on a GPU.
        attention: a backend's name.
        row_ops: row operations.
    """

    points: int = 20
    device: str = "auto"
    dtype: str = "auto"
    attention: str = "auto"
    row_ops: str = "auto"

    def varied(self, text: str) -> "Profile":
        """This profile with `KEY=VALUE,...` changed.

        Raises:
            InvalidRequestError: an unknown key, or a number of points that is none.
        """
        known = [field.name for field in fields(self)]
        changes: dict[str, object] = {}
        for word in text.split(","):
            key, _, value = word.partition("=")
            if key not in known or not value or (key == "points" and not value.isdigit()):
                raise InvalidRequestError(
                    f"profile: {word!r} is not legal; legal: KEY=VALUE with {', '.join(known)}"
                )
            changes[key] = int(value) if key == "points" else value
        return replace(self, **changes)  # type: ignore[arg-type]  # keys and kinds are checked


@dataclass(slots=True)
class Clip:
    """A generated clip."""

    frames: Frames
    wave: Wave

    @property
    def digest(self) -> str:
        """SHA-256 over pixels and samples."""
        content = self.frames.tobytes() + np.ascontiguousarray(self.wave, np.float32).tobytes()
        return hashlib.sha256(content).hexdigest()


class Library:
    """One checkpoint, ready to make clips."""

    def __init__(self, checkpoint: Path, profile: Profile) -> None:
        """Load every component once, and the transformers of the partitions there are.

        Raises:
            CheckpointError, BackendUnavailableError: as a server's start would.
        """
        self.profile = profile
        cuda = torch.cuda.is_available()
        name = profile.device if profile.device != "auto" else "cuda:0" if cuda else "cpu"
        self._device = torch.device(name)
        self._cores = len(os.sched_getaffinity(0))
        on_gpu = self._device.type == "cuda"
        dtype = profile.dtype if profile.dtype != "auto" else "bf16" if on_gpu else "fp32"
        if dtype not in _DTYPES:
            raise InvalidRequestError(f"dtype: {dtype!r} is not legal; legal: auto, fp32, bf16")
        self._dtype = _DTYPES[dtype]
        found = official_partitions(checkpoint)
        self._manifests: dict[str, CheckpointManifest] = {
            task: identify(checkpoint, task)
            for task, folder in ((TASK_FL2VA, "FL2VA"), (TASK_REF2VA, "Ref2VA"))
            if folder in found
        }
        manifest = next(iter(self._manifests.values()))
        self._tokenizer = load_tokenizer(manifest.tokenizer)
        self._rules = load_vision_rules(manifest.processor)
        self._text = TruncatedQwen3VL.load(manifest, self._device, self._dtype)
        self._video_encoder = load_video_encoder(manifest, self._device)
        self._audio_encoder = load_audio_encoder(manifest, self._device)
        self._video = load_video_vae(manifest, self._device, self._dtype)
        self._audio = load_audio_vae(manifest, self._device)
        self._runtimes = {task: self._runtime(each) for task, each in self._manifests.items()}

    @property
    def has_references(self) -> bool:
        """Whether the second partition is there."""
        return TASK_REF2VA in self._manifests

    def _runtime(self, manifest: CheckpointManifest) -> DitRuntime:
        head_dim = manifest.dit_config.head_dim
        attention, _ = select(self.profile.attention, self._device, self._dtype, head_dim)
        row_ops, _ = select_row_ops(self.profile.row_ops, self._device)
        model = load_transformer(manifest, self._device, self._dtype)
        return DitRuntime(
            model,
            attention,
            AdaLNTableCache(),
            manifest.digest,
            row_ops,
            select_euler_step(row_ops),
        )

    def generate(self, case: Case) -> Clip:
        """Make the clip of a case.

        Raises:
            InvalidRequestError: the checkpoint has no partition for its task.
        """
        task = TASK_REF2VA if case.task in REFERENCE_TASKS else TASK_FL2VA
        if task not in self._runtimes:
            raise InvalidRequestError(f"task {task}: the checkpoint has no partition for it")
        with _threads(self._cores):
            return self._generate(task, case)

    def _generate(self, task: str, case: Case) -> Clip:
        conditions = case.kind.conditions
        blocks = blocks_of(conditions, self._rules)
        ids, tags = present_request(case.prompt, blocks, self._tokenizer)
        embeds = self._text.encode(ids, self._vision(ids, blocks, case))
        visual, sounds = self._encode(conditions, case)
        conditioning = Conditioning(embeds.float(), torch.from_numpy(tags), visual, sounds)
        manifest = self._manifests[task]
        plan = replace(
            case.kind.plan(len(ids)),
            num_points=self.profile.points,
            flow_shift=manifest.video_flow_shift,
            audio_flow_shift=manifest.audio_flow_shift,
        )
        return self._denoise(self._runtimes[task], plan, case.seed, conditioning)

    def _vision(
        self, ids: NDArray[np.int64], blocks: tuple[Block, ...], case: Case
    ) -> Mapping[str, Tensor] | None:
        shown = [
            _sampled(medium.frames, block)
            for medium, block in zip(case.media, blocks, strict=True)
            if medium.frames is not None
        ]
        if not shown:
            return None
        packed = pack_pixels(blocks, shown)
        return vision_inputs(
            ids,
            packed.pixel_values,
            packed.image_grid,
            packed.video_grid,
            image_pad=self._text.image_pad,
            video_pad=self._text.video_pad,
            device=self._device,
        )

    def _encode(self, conditions: tuple[Condition, ...], case: Case) -> tuple[Tensor, Tensor]:
        rows = [torch.zeros(0, VIDEO_ROW_WIDTH)]
        sounds = [torch.zeros(0, AUDIO_ROW_WIDTH)]
        for condition, medium in zip(conditions, case.media, strict=True):
            if medium.frames is not None:
                rows.append(video_to_rows(self._video_encoder.encode(medium.frames)))
            if condition.audio_latents and medium.wave is not None:
                wave = medium.wave[:, : condition.audio_latents * AUDIO_HOP_SAMPLES]
                sounds.append(audio_to_rows(self._audio_encoder.encode(wave)))
        return torch.cat(rows), torch.cat(sounds)

    def _denoise(
        self, runtime: DitRuntime, plan: Plan, seed: int, conditioning: Conditioning
    ) -> Clip:
        session = DenoiseSession.prepare(runtime, plan, seed, conditioning)
        for step in range(session.num_forwards):
            session.step(step)
        video, audio = session.latents()
        with _threads(self._cores // 2):  # a server decodes picture and sound at the same time
            frames = np.concatenate(list(self._video.decode_clips(video)))
            return Clip(frames, self._audio.decode(audio))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Another number of CPU threads; sums split among them round differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, count))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _sampled(frames: Frames, block: Block) -> Frames:
    """What the text encoder is shown: a picture, or every so many frames of a video."""
    if not block.is_video:
        return frames[0]
    step = -(-len(frames) // block.sampled_frames)
    return frames[::step]
