"""Every tensor between a client and the ensemble and between the ensemble's models.

This is the single source: `config.pbtxt` files are rendered from it, adapters read and check
tensors by it, tests compare both. `-1` is a free dimension. No batch dimension is written for a
model with `max_batch_size > 0`; Triton adds it in front.
"""

from dataclasses import dataclass
from types import MappingProxyType

from minimax_h3.core.config import COMBINED
from minimax_h3.core.constants import (
    AUDIO_ROW_WIDTH,
    TASK_FL2VA,
    TASK_REF2VA,
    TASK_T2VA,
    VIDEO_LATENT_CHANNELS,
    VIDEO_ROW_WIDTH,
    VISION_PATCH_WIDTH,
)

STRING, BOOL, UINT8, INT32, INT64, FP32 = "STRING", "BOOL", "UINT8", "INT32", "INT64", "FP32"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One named tensor.

    Attributes:
        name: name on the wire.
        dtype: Triton data type without the `TYPE_` prefix (and `STRING`, which clients call BYTES).
        dims: dimensions without the batch dimension; -1 is free.
        meaning: what it holds, with units.
        optional: an input that a request may leave out.
        opaque: an input that the model forwards without reading; its adapter hands it on untouched.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    meaning: str
    optional: bool = False
    opaque: bool = False


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One Triton model of the repository.

    Attributes:
        name: folder and model name.
        inputs, outputs: tensors on the wire.
        max_batch_size: 0 for models that take one request at a time.
        instances: processes that serve it.
        parameters: parameters it accepts besides the common ones of `core.config`.
        kind: instance group kind; the model itself chooses its device and logs it.
        decoupled: answers a request with many responses.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int = 0
    instances: int = 1
    kind: str = "KIND_CPU"
    decoupled: bool = False


def _info(stage: str) -> TensorSpec:
    return TensorSpec(f"{stage.upper()}_INFO", STRING, (1,), f"JSON: seconds and facts of {stage}")


PLAN = TensorSpec("PLAN", STRING, (1,), "JSON of core.plan.Plan: the validated request")
TASK = TensorSpec("TASK", STRING, (1,), "resolved task; the key of ROUTES")
TOKEN_IDS = TensorSpec("TOKEN_IDS", INT64, (-1,), "token ids of the presentation, L")
TEXT_TAGS = TensorSpec("TEXT_TAGS", INT64, (1, -1), "modality tag of each text row, [1, L]")
PIXEL_VALUES = TensorSpec(
    "PIXEL_VALUES",
    UINT8,
    (-1, VISION_PATCH_WIDTH),
    "vision patches of one frame each, [patches, 3 * 16 * 16]: all pictures, then all videos with "
    "the two frames of a pair next to each other; normalised by the text encoder; no rows for t2va",
)
IMAGE_GRID_THW = TensorSpec(
    "IMAGE_GRID_THW", INT64, (-1, 3), "patches (t, h, w) of each picture block, in order"
)
VIDEO_GRID_THW = TensorSpec(
    "VIDEO_GRID_THW", INT64, (-1, 3), "patches (t, h, w) of each reference video, in order"
)
PROMPT_EMBEDS = TensorSpec(
    "PROMPT_EMBEDS", FP32, (1, -1, -1), "hidden_states[50], [1, L, width]; FP32 holds BF16 exactly"
)
CONDITION_ROWS = TensorSpec(
    "CONDITION_ROWS",
    FP32,
    (1, -1, VIDEO_ROW_WIDTH),
    "clean normalised rows of visual conditions, [1, Nc, 96]; zero rows for t2va",
)
AUDIO_CONDITION_ROWS = TensorSpec(
    "AUDIO_CONDITION_ROWS",
    FP32,
    (1, -1, AUDIO_ROW_WIDTH),
    "rows of reference sound, then of a driving audio; channel-major each, [1, Na, 32]",
)
VIDEO_LATENTS = TensorSpec(
    "VIDEO_LATENTS",
    FP32,
    (-1, VIDEO_LATENT_CHANNELS, -1, -1, -1),
    "normalised video latents, [n, 24, T, H/16, W/16]",
)
AUDIO_LATENTS = TensorSpec(
    "AUDIO_LATENTS", FP32, (-1, 2, AUDIO_ROW_WIDTH, -1), "normalised audio latents, [n, 2, 32, A]"
)
VIDEO_STREAM = TensorSpec(
    "VIDEO_STREAM", STRING, (-1,), "n silent H.264 streams in MP4, one per clip"
)
FRAMES = TensorSpec(
    "FRAMES",
    UINT8,
    (-1, -1, -1, -1, 3),
    "RGB frames [n, F, H, W, 3] when return_frames is set, else [0, 0, 0, 0, 3]",
)
AUDIO = TensorSpec("AUDIO", FP32, (-1, 2, -1), "32 kHz stereo waveform in [-1, 1], [n, 2, samples]")
MP4 = TensorSpec("MP4", STRING, (-1,), "n finished files, one per clip")
METADATA = TensorSpec("METADATA", STRING, (1,), "JSON: what was made and what it cost")

TEXT_ENCODER_INFO = _info("text_encoder")
CONDITION_ENCODER_INFO = _info("condition_encoder")
DENOISER_INFO = _info("denoiser")
VIDEO_DECODER_INFO = _info("video_decoder")
AUDIO_DECODER_INFO = _info("audio_decoder")

# Encoded files; preprocess and condition_encoder both read them, so that no pixels cross processes.
KEYFRAMES = TensorSpec("KEYFRAMES", STRING, (-1,), "1 or 2 encoded pictures (fl2va)", optional=True)
REFERENCES = TensorSpec(
    "REFERENCES",
    STRING,
    (-1,),
    "1..12 encoded pictures, videos and sounds, in the order the prompt counts them (ref2va)",
    optional=True,
)
REQUEST_INPUTS = (
    # Whole numbers are INT64: Triton cuts a number of an HTTP body down to 32 bits without a word.
    # Optional for Triton only: without it an ensemble answers with a riddle, preprocess by name.
    TensorSpec("PROMPT", STRING, (1,), "what to make, used verbatim; required", optional=True),
    TensorSpec("TASK", STRING, (1,), "t2va, fl2va or ref2va; inferred when absent", optional=True),
    TensorSpec("WIDTH", INT64, (1,), "canvas width in pixels, with HEIGHT", optional=True),
    TensorSpec("HEIGHT", INT64, (1,), "canvas height in pixels, with WIDTH", optional=True),
    TensorSpec("ASPECT_RATIO", STRING, (1,), "W:H, on the 768 short edge", optional=True),
    TensorSpec("DURATION", FP32, (1,), "seconds", optional=True),
    TensorSpec("NUM_FRAMES", INT64, (1,), "frames, aligned up to 17 n + 5", optional=True),
    TensorSpec(
        "NUM_INFERENCE_STEPS", INT64, (1,), "sigma points; one forward fewer", optional=True
    ),
    TensorSpec("SEED", INT64, (1,), "seed of the first clip", optional=True),
    TensorSpec("NUM_OUTPUTS", INT64, (1,), "clips; clip i uses seed + i", optional=True),
    TensorSpec("FPS", FP32, (1,), "must be 24", optional=True),
    KEYFRAMES,
    TensorSpec(
        "FRAME_INDICES", INT64, (-1,), "0 (first) or -1 (last), one per keyframe", optional=True
    ),
    REFERENCES,
    TensorSpec(
        "START_TIME_SECONDS", FP32, (-1,), "seconds to skip, one per reference video", optional=True
    ),
    TensorSpec("AUDIO_MODE", STRING, (1,), "native or lock_source", optional=True),
    TensorSpec("RETURN_FRAMES", BOOL, (1,), "also fill FRAMES", optional=True),
    TensorSpec("OPTIONS", STRING, (1,), "JSON object with any other request field", optional=True),
)

_DIT_INPUTS = (
    TensorSpec("OP", STRING, (1,), "start, step or end; status tells how many sessions are held"),
    TensorSpec("SESSION", STRING, (1,), "session id, known to jobs before start"),
    TensorSpec(
        "STEP", INT32, (-1,), "step index in element 0; the length is a merge key", optional=True
    ),
    TensorSpec(
        "WANT_LATENTS", BOOL, (1,), "end: true to get the latents of a done session", optional=True
    ),
    TensorSpec("SESSION_PLAN", STRING, (1,), "start: JSON plan and seed", optional=True),
    TensorSpec("PROMPT_EMBEDS", FP32, (-1, -1), "start: [L, width]", optional=True),
    TensorSpec("TEXT_TAGS", INT64, (-1,), "start: [L]", optional=True),
    TensorSpec("CONDITION_ROWS", FP32, (-1, VIDEO_ROW_WIDTH), "start: [Nc, 96]", optional=True),
    TensorSpec(
        "AUDIO_CONDITION_ROWS", FP32, (-1, AUDIO_ROW_WIDTH), "start: [Na, 32]", optional=True
    ),
)
_DIT_OUTPUTS = (
    TensorSpec("STATE", STRING, (1,), "JSON: ready, step, facts"),
    TensorSpec(
        "VIDEO_LATENTS", FP32, (VIDEO_LATENT_CHANNELS, -1, -1, -1), "end: [24, T, H/16, W/16]"
    ),
    TensorSpec("AUDIO_LATENTS", FP32, (2, AUDIO_ROW_WIDTH, -1), "end: [2, 32, A]"),
)


def _opaque(spec: TensorSpec) -> TensorSpec:
    return TensorSpec(spec.name, spec.dtype, spec.dims, spec.meaning, spec.optional, opaque=True)


# A request with this parameter asks only whether the model's process answers; see `triton_io`.
PROBE_PARAMETER = "h3_probe"

EVENT = TensorSpec("EVENT", STRING, (1,), "JSON: one event of a stream, see stages.stream")
RESULT_AS = TensorSpec(
    "RESULT_AS",
    STRING,
    (1,),
    "how the last response carries the clips: bytes, base64 or handle; bytes when absent",
    optional=True,
)

BLS_THREADS = 32  # calls that one model instance may have open at the same time
STREAM_ENSEMBLES = 24  # of them held by running clips; with all of them held nothing is asked
DENOISER_INSTANCES = 8  # running plus waiting jobs
DIT_MAX_BATCH = 8

_MODELS = (
    ModelSpec(
        "preprocess",
        REQUEST_INPUTS,
        (PLAN, TASK, TOKEN_IDS, TEXT_TAGS, PIXEL_VALUES, IMAGE_GRID_THW, VIDEO_GRID_THW),
    ),
    ModelSpec(
        "text_encoder",
        (PLAN, TOKEN_IDS, PIXEL_VALUES, IMAGE_GRID_THW, VIDEO_GRID_THW),
        (PROMPT_EMBEDS, TEXT_ENCODER_INFO),
        kind="KIND_MODEL",
    ),
    ModelSpec(
        "condition_encoder",
        (PLAN, KEYFRAMES, REFERENCES),
        (CONDITION_ROWS, AUDIO_CONDITION_ROWS, CONDITION_ENCODER_INFO),
        kind="KIND_MODEL",
    ),
    ModelSpec(
        "denoiser",
        (
            PLAN,
            TASK,
            _opaque(PROMPT_EMBEDS),
            _opaque(TEXT_TAGS),
            _opaque(CONDITION_ROWS),
            _opaque(AUDIO_CONDITION_ROWS),
        ),
        (VIDEO_LATENTS, AUDIO_LATENTS, DENOISER_INFO),
        instances=DENOISER_INSTANCES,
    ),
    ModelSpec(
        "dit_fl2va", _DIT_INPUTS, _DIT_OUTPUTS, max_batch_size=DIT_MAX_BATCH, kind="KIND_MODEL"
    ),
    ModelSpec(
        "dit_ref2va", _DIT_INPUTS, _DIT_OUTPUTS, max_batch_size=DIT_MAX_BATCH, kind="KIND_MODEL"
    ),
    ModelSpec(
        "video_decoder",
        (PLAN, VIDEO_LATENTS),
        (VIDEO_STREAM, FRAMES, VIDEO_DECODER_INFO),
        kind="KIND_MODEL",
    ),
    ModelSpec(
        "audio_decoder", (PLAN, AUDIO_LATENTS), (AUDIO, AUDIO_DECODER_INFO), kind="KIND_MODEL"
    ),
    ModelSpec(
        "muxer",
        (
            PLAN,
            VIDEO_STREAM,
            AUDIO,
            TEXT_ENCODER_INFO,
            CONDITION_ENCODER_INFO,
            DENOISER_INFO,
            VIDEO_DECODER_INFO,
            AUDIO_DECODER_INFO,
        ),
        (MP4, METADATA),
    ),
    ModelSpec(
        "jobs",
        (TensorSpec("OP", STRING, (1,), "JSON operation, see control.job_table"),),
        (TensorSpec("ANSWER", STRING, (1,), "JSON answer"),),
    ),
    ModelSpec(
        "minimax_h3_stream", (*REQUEST_INPUTS, RESULT_AS), (EVENT, MP4, METADATA), decoupled=True
    ),
    ModelSpec(
        "results",
        (TensorSpec("JOB", STRING, (1,), "job id, or the request id it was sent with"),),
        (MP4, METADATA),
    ),
)
MODELS = MappingProxyType({model.name: model for model in _MODELS})

ENSEMBLE = ModelSpec("minimax_h3", REQUEST_INPUTS, (MP4, METADATA, FRAMES, AUDIO))
ENSEMBLE_STEPS = (
    "preprocess",
    "text_encoder",
    "condition_encoder",
    "denoiser",
    "video_decoder",
    "audio_decoder",
    "muxer",
)

# Who may use the operations of `jobs` that are for this server's own models: calls that carry the
# token of this start. `h3 serve` makes it and hands it to the models in their environment.
WORKER_TOKEN_VARIABLE = "H3_WORKER_TOKEN"
WORKER_TOKEN_PARAMETER = "h3_worker_token"
# Where the models write their JSON log, and whether their calls are part of traces.
JSON_LOG_VARIABLE = "H3_JSON_LOG"
TRACE_VARIABLE = "H3_TRACE"
# In a trusted call: the id of a job that has a place already, and when its request came.
JOB_ID_PARAMETER = "h3_job_id"
RECEIVED_AT_PARAMETER = "h3_received_at"
# And that its caller wants the kind of an error in front of the message; see `triton_io.bls`.
WANTS_KIND_PARAMETER = "wants_error_kind"

# The only routing table: which DiT model a task's steps go to.
ROUTES = MappingProxyType(
    {TASK_T2VA: "dit_fl2va", TASK_FL2VA: "dit_fl2va", TASK_REF2VA: "dit_ref2va"}
)


def models_of(task_type: str) -> tuple[str, ...]:
    """Models that a server of this task type needs: a DiT of the other partition is left out.

    Args:
        task_type: one of `core.config.TASK_TYPES`.
    """
    idle = set() if task_type == COMBINED else {*ROUTES.values()} - {ROUTES[task_type]}
    return tuple(name for name in MODELS if name not in idle)
