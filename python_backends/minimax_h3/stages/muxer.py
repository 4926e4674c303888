"""Streams and waveforms -> MP4 files and the metadata of the job."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from minimax_h3.control.result_store import ResultStore
from minimax_h3.core.config import COMBINED
from minimax_h3.core.constants import (
    AUDIO_LATENTS_PER_SECOND,
    AUDIO_SAMPLE_RATE_HZ,
    TASK_FL2VA,
    TASK_REF2VA,
    VIDEO_FPS,
)
from minimax_h3.core.lengths import media_seconds
from minimax_h3.core.plan import Plan
from minimax_h3.media.mp4 import mux
from minimax_h3.stages.base import StageContext, StageRequest, text_tensor
from minimax_h3.stages.checkpoint import open_checkpoint
from minimax_h3.stages.job_client import JobClient
from minimax_h3.stages.results import open_store
from minimax_h3.weights.manifest import CheckpointManifest

_VERSIONED = ("minimax-h3-triton", "torch", "diffusers", "transformers", "av", "numpy")
_INFO = ("text_encoder", "condition_encoder", "denoiser", "video_decoder", "audio_decoder")


class MuxerStage:
    """The last stage: its answer ends the job."""

    name: ClassVar[str] = "muxer"

    def __init__(
        self,
        manifests: Mapping[str, CheckpointManifest],
        jobs: JobClient,
        store: ResultStore | None = None,
    ) -> None:
        self._manifests = manifests
        self._jobs = jobs
        self._store = store
        self._versions = {name: version(name) for name in _VERSIONED}

    @classmethod
    def load(cls, context: StageContext) -> "MuxerStage":
        """Read the index of each partition: the metadata names the one that a task ran on."""
        task_type = context.config.task_type
        partitions = (TASK_FL2VA, TASK_REF2VA) if task_type == COMBINED else (task_type,)
        held = [open_checkpoint(context, partition) for partition in partitions]
        manifests = {task: manifest for manifest in held for task in manifest.tasks}
        return cls(manifests, JobClient(context.call, context.log), open_store(context))

    def run(self, request: StageRequest) -> dict[str, NDArray[np.generic]]:
        """Mux every clip and describe the job.

        Raises:
            CancelledError: the job was cancelled before this stage.
        """
        plan = Plan.from_json(request.text("PLAN"))
        self._jobs.progress(plan, self.name)
        began = time.perf_counter()
        streams, waves = request.array("VIDEO_STREAM"), request.array("AUDIO")
        files = [mux(bytes(stream), wave) for stream, wave in zip(streams, waves, strict=True)]
        stages: dict[str, dict[str, object]] = {"preprocess": {"seconds": plan.preprocess_s}}
        for stage in _INFO:
            stages[stage] = json.loads(request.text(f"{stage.upper()}_INFO"))
        stages["muxer"] = {"seconds": round(time.perf_counter() - began, 6)}
        metadata = json.dumps(self._describe(plan, stages, [len(file) for file in files]))
        self._jobs.progress(plan, self.name, step=1, num_steps=1)
        self._keep(plan, files, metadata)
        self._jobs.ask(plan, "finish")
        return {"MP4": np.array(files, dtype=object), "METADATA": text_tensor(metadata)}

    def _keep(self, plan: Plan, files: list[bytes], metadata: str) -> None:
        """Keep the result for a while; a full disk costs the copy and not the job."""
        try:
            if self._store is not None and not self._store.put(plan.job_id, files, metadata):
                self._jobs.note(plan, "its result is not kept: larger than results_bytes")
        except OSError as error:
            self._jobs.note(plan, f"its result is not kept: {error}")

    def _describe(
        self, plan: Plan, stages: dict[str, dict[str, object]], sizes: list[int]
    ) -> dict[str, object]:
        total_s, media_s = time.time() - plan.received_at, media_seconds(plan.num_frames)
        manifest = self._manifests[plan.task]
        sounds = stages["audio_decoder"].pop("clips")
        assert isinstance(sounds, list)
        return {
            "job_id": plan.job_id,
            "request_id": plan.alias,
            "task": plan.task,
            "width": plan.width,
            "height": plan.height,
            "fps": VIDEO_FPS,
            "num_frames": plan.num_frames,
            "duration_s": round(plan.num_frames / VIDEO_FPS, 6),
            "audio_s": round(plan.audio_latents / AUDIO_LATENTS_PER_SECOND, 6),
            "sample_rate_hz": AUDIO_SAMPLE_RATE_HZ,
            "media_s": round(media_s, 6),
            "num_points": plan.num_points,
            "num_forwards": plan.num_forwards,
            "flow_shift": plan.flow_shift,
            "audio_flow_shift": plan.audio_flow_shift,
            "noise_recipe": plan.noise_recipe,
            "seed": plan.seeds[0],
            "text_rows": plan.text_rows,
            "packed_rows": plan.packed_rows,
            "conditions": [asdict(condition) for condition in plan.conditions],
            "total_s": round(total_s, 6),
            "rtf": round(total_s / (media_s * len(plan.seeds)), 6),
            "backend": {
                "attention": stages["denoiser"].get("attention"),
                "row_ops": stages["denoiser"].get("row_ops"),
                "device": stages["denoiser"].get("device"),
                "dtype": stages["denoiser"].get("dtype"),
            },
            "clips": [
                {"seed": seed, "bytes": size, "audio": sound}
                for seed, size, sound in zip(plan.seeds, sizes, sounds, strict=True)
            ],
            "stages": stages,
            "checkpoint": {
                "layout": manifest.layout,
                "partition": manifest.partition,
                "digest": manifest.digest,
            },
            "versions": self._versions,
        }
