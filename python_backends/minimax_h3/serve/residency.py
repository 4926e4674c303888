"""What lies where once a server runs: weights, working memory and process overhead, in bytes.

Weights are exact: they follow from the headers of the checkpoint. Working memory follows from the
widest moment of each stage and is close: a request of 124 frames took 45.9 GB in a DiT of the
released size, this arithmetic says 45.8. Overhead of a process is what was seen, rounded up.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from minimax_h3.core.config import COMBINED, StageConfig
from minimax_h3.core.constants import (
    AUDIO_HOP_SAMPLES,
    CANVAS_MULTIPLE,
    TASK_FL2VA,
    TASK_REF2VA,
    VAE_CLIP_FRAMES,
)
from minimax_h3.core.contracts import models_of
from minimax_h3.core.fields import MAX_FRAMES, MAX_PROMPT_TOKENS, MIN_FRAMES
from minimax_h3.core.lengths import align_frames_up, audio_latents_from_frames, latents_from_frames
from minimax_h3.weights.dit_config import DiTConfig
from minimax_h3.weights.footprint import footprint
from minimax_h3.weights.manifest import CheckpointManifest
from minimax_h3.weights.vae_config import video_vae_arguments

DEVICE, HOST = "device", "host"
CROSSING = "/dev/shm"  # where tensors cross from one process to another
COMPUTING = ("text_encoder", "condition_encoder", "video_decoder", "audio_decoder")

# Seen on an H200: a CUDA context with its libraries, and the process around it.
CUDA_CONTEXT_BYTES = 600_000_000
CUDA_PROCESS_BYTES = 2_000_000_000
# Seen on a CPU: a process that imports torch and diffusers or transformers, and one that does not.
CPU_PROCESS_BYTES = 550_000_000
LIGHT_PROCESS_BYTES = 60_000_000

_SCHEDULES_KEPT = 2  # AdaLN tables, see caches.adaln_table
_TIMES_OF_A_SCHEDULE = 97  # 49 forwards: 49 of the video, 48 more of the sound
_SESSION_ROW_BYTES = 2048  # latents, rotary table and indices of a session
_PACK_ROW_BYTES = 2048  # FP32 velocities and projections of a forward
_DECODER_WINDOW_FRAMES = 28  # of a VAE clip before 17 of them are final
_TILE_OVERLAP = 1.8  # pixels in tiles over pixels of the picture: 28 * 256 * 256 / (1344 * 768)
_TILE_ROWS = 1797  # of one tile of the decoder's transformer
_TILE_PIXELS = 256 * 256
_ENCODER_LIVE = 4  # feature maps of full size alive at once in the encoder
_AUDIO_LIVE = 12  # waveforms of the widest level alive at once in the audio decoder


@dataclass(frozen=True, slots=True)
class Part:
    """One process's share of memory.

    Attributes:
        model: the Triton model, or what else takes memory.
        weights: bytes that stay.
        working: bytes at its widest moment, on top of the weights.
        overhead: of the process itself.
        place: `device` or `host`.
        takes_turns: its weights are there only while it works, see `stages.offload`.
        kept: of the working memory, what stays there while another model has its turn.
    """

    model: str
    place: str
    weights: int = 0
    working: int = 0
    overhead: int = 0
    takes_turns: bool = False
    kept: int = 0

    @property
    def total(self) -> int:
        """All its bytes."""
        return self.weights + self.working + self.overhead

    @property
    def standing(self) -> int:
        """Bytes that are there whatever works."""
        return self.overhead + (self.kept if self.takes_turns else self.weights)

    @property
    def coming(self) -> int:
        """Bytes on top of these once it works."""
        return self.total - self.standing


@dataclass(frozen=True, slots=True)
class ResidentPlan:
    """All parts of one server; each stage may be at its widest at the same time as the others.

    Of those that take turns only one works at a time.

    Attributes:
        parts: shares of memory.
        max_packed_rows: largest request that the plan has room for.
        shared_memory: bytes of tensors of one such request between processes, all at once.
    """

    parts: tuple[Part, ...]
    max_packed_rows: int
    shared_memory: int

    def need(self, place: str) -> int:
        """Bytes needed in one place."""
        if place == CROSSING:
            return self.shared_memory
        there = [part for part in self.parts if part.place == place]
        turns = [part.coming for part in there if part.takes_turns]
        fixed = sum(part.standing if part.takes_turns else part.total for part in there)
        return fixed + max(turns, default=0)

    def peak_of(self, part: "Part") -> int:
        """Bytes in the place of a part while only this part works; the last turn's weights stay."""
        there = [other for other in self.parts if other.place == part.place]
        turns = [other.weights for other in there if other.takes_turns and not part.takes_turns]
        return sum(other.standing for other in there) + part.coming + max(turns, default=0)

    def as_json(self) -> dict[str, object]:
        """For the facts file."""
        return {
            "max_packed_rows": self.max_packed_rows,
            "device_bytes": self.need(DEVICE),
            "host_bytes": self.need(HOST),
            "shared_memory_bytes": self.shared_memory,
            "parts": [
                {
                    "model": part.model,
                    "place": part.place,
                    "weights_bytes": part.weights,
                    "working_bytes": part.working,
                    "overhead_bytes": part.overhead,
                    "takes_turns": part.takes_turns,
                    **({"stage_peak_bytes": self.peak_of(part)} if part.working else {}),
                }
                for part in self.parts
            ],
        }

    def lines(self, free: Mapping[str, int]) -> list[str]:
        """The table for the log, in GB.

        Args:
            free: bytes in each place.
        """
        rows: list[tuple[str, ...]] = [
            ("model", "place", "weights", "working", "process", "peak while it works")
        ]
        for part in self.parts:
            peak = gigabytes(self.peak_of(part)) if part.working else ""
            sizes = [gigabytes(size) for size in (part.weights, part.working, part.overhead)]
            place = f"{part.place}, by turns" if part.takes_turns else part.place
            rows.append((part.model, place, *sizes, peak))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        table = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        sums = [
            f"all at once, {place}: {gigabytes(self.need(place))} of {gigabytes(size)} free"
            for place, size in free.items()
            if self.need(place)
        ]
        return [*table, *sums]


def gigabytes(size: float) -> str:
    """Bytes as a reader wants them: `40.26 GB`."""
    return f"{size / 1e9:.2f} GB"


def plan_residency(
    manifests: Mapping[str, CheckpointManifest], config: StageConfig, *, on_gpu: bool
) -> ResidentPlan:
    """Decide what lies where.

    Args:
        manifests: by partition's task type, `fl2va` or `ref2va`; what they share counts once.
        config: of the server.
        on_gpu: the models compute on a GPU.
    """
    item = {"fp32": 4, "bf16": 2}.get(config.dtype, 2 if on_gpu else 4)
    first = next(iter(manifests.values()))
    sizes = footprint(first, item, item if on_gpu else 4)
    place = DEVICE if on_gpu else HOST
    overhead = CUDA_CONTEXT_BYTES if on_gpu else CPU_PROCESS_BYTES
    adaln_place = config.adaln_weights if config.adaln_weights != "auto" else place
    if config.adaln_weights == "auto" and on_gpu:
        adaln_place = HOST
    if config.weights == "dummy" and adaln_place == HOST:
        adaln_place = ""  # drawn whenever a schedule needs them

    turns = config.offloaded()
    parts = []
    for task, manifest in manifests.items():
        model = f"dit_{task}"
        dit = manifest.dit_config
        held = sizes.transformer + (sizes.adaln if adaln_place == place else 0)
        working, kept = dit_working(dit, config, item), dit_kept(dit, config, item)
        parts.append(Part(model, place, held, working, overhead, model in turns, kept))
        if adaln_place == HOST != place:
            parts.append(Part(f"{model} AdaLN", HOST, sizes.adaln))
    text_rows = most_text_rows(config)
    halves = {
        "text_encoder": (sizes.text_encoder, text_working(first, text_rows, item)),
        "condition_encoder": (
            sizes.video_encoder + sizes.audio_encoder,
            encoder_working(first),
        ),
        "video_decoder": (sizes.video_decoder, decoder_working(first, config, item)),
        "audio_decoder": (sizes.audio_decoder, audio_working()),
    }
    parts += [Part(model, place, *halves[model], overhead, model in turns) for model in COMPUTING]
    if turns:
        waiting = sum(part.weights for part in parts if part.takes_turns)
        parts.append(Part("weights that wait", HOST, waiting))
    computing = len(manifests) + len(COMPUTING)
    light = len(models_of(config.task_type)) - computing
    if on_gpu:
        parts.append(Part("CUDA processes", HOST, overhead=computing * CUDA_PROCESS_BYTES))
    parts.append(Part("other processes", HOST, overhead=light * LIGHT_PROCESS_BYTES))
    return ResidentPlan(
        tuple(parts), config.max_packed_rows, crossing_bytes(first.dit_config, config)
    )


def partitions_of(task_type: str) -> tuple[str, ...]:
    """Task types of the partitions that a server holds."""
    return (TASK_FL2VA, TASK_REF2VA) if task_type == COMBINED else (task_type,)


def dit_working(dit: DiTConfig, config: StageConfig, item: int) -> int:
    """Widest moment of a forward: stream, normed rows and branch beside q, k, v or the inner FFN.

    What is kept from one forward to the next comes on top.
    """
    rows = config.max_packed_rows
    branch = max(4 * dit.inner_dim, 3 * dit.ffn_dim)
    forward = rows * (item * (3 * dit.hidden_size + branch) + _PACK_ROW_BYTES)
    return forward + dit_kept(dit, config, item)


def dit_kept(dit: DiTConfig, config: StageConfig, item: int) -> int:
    """AdaLN tables of the kept schedules and the state of all running sessions."""
    table = item * (dit.num_layers * dit.adaln_dim + 2 * dit.hidden_size) * _TIMES_OF_A_SCHEDULE
    sessions = config.running_jobs * config.max_packed_rows * _SESSION_ROW_BYTES
    return _SCHEDULES_KEPT * table + sessions


def most_text_rows(config: StageConfig) -> int:
    """Text rows of the largest request: a reference brings about as many as it has rows itself."""
    if config.task_type == TASK_FL2VA:
        return min(MAX_PROMPT_TOKENS + 2 * _largest_frame_rows(config), config.max_packed_rows)
    return max(min(MAX_PROMPT_TOKENS, config.max_packed_rows), config.max_packed_rows // 2)


def text_working(manifest: CheckpointManifest, rows: int, item: int) -> int:
    """Widest moment of a decoder layer: the stream and four inner rows."""
    text = manifest.configs["text_encoder"]["text_config"]
    assert isinstance(text, Mapping)
    return rows * item * (3 * int(text["hidden_size"]) + 4 * int(text["intermediate_size"]))


def decoder_working(manifest: CheckpointManifest, config: StageConfig, item: int) -> int:
    """One clip of the largest canvas: raw tiles, stitched FP32, and one batch of tiles inside."""
    arguments = video_vae_arguments(manifest)
    heads, width = (
        arguments[f"decoder_{name}"] for name in ("num_attention_heads", "attention_head_dim")
    )
    assert isinstance(heads, int)
    assert isinstance(width, int)
    pixels = _largest_frame_rows(config) * CANVAS_MULTIPLE**2
    values = 3 * _DECODER_WINDOW_FRAMES * max(pixels, _TILE_PIXELS)
    tiles = int(_TILE_OVERLAP * values) * item
    inner = 3 * 4 * heads * width + 4 * heads * width  # SwiGLU of four times the width, the stream
    batch = config.tiles_per_batch(on_gpu=item == 2)
    return tiles + 2 * 4 * values + batch * _TILE_ROWS * inner * item


def encoder_working(manifest: CheckpointManifest) -> int:
    """One tile of one clip at the encoder's first level, in FP32."""
    channels = video_vae_arguments(manifest)["block_out_channels"]
    assert isinstance(channels, list)
    return _ENCODER_LIVE * 4 * VAE_CLIP_FRAMES * _TILE_PIXELS * int(channels[0])


def audio_working() -> int:
    """The longest sound, both channels, in FP32: channels halve where samples double."""
    samples = audio_latents_from_frames(MAX_FRAMES) * AUDIO_HOP_SAMPLES
    return _AUDIO_LIVE * 2 * 4 * samples * 8


def crossing_bytes(dit: DiTConfig, config: StageConfig) -> int:
    """Tensors of the largest request in shared memory: prompt and latents, three copies of each."""
    latents = config.max_packed_rows * 4 * dit.video_row_width
    return 3 * (most_text_rows(config) * 4 * dit.text_dim + latents)


def _largest_frame_rows(config: StageConfig) -> int:
    """Packed rows of one frame of the largest canvas: the shortest clip has the largest one."""
    return math.ceil(config.max_packed_rows / latents_from_frames(align_frames_up(MIN_FRAMES)))
