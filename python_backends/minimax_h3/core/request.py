"""The request contract: one table of fields, and the validation of a request against it.

Source: pipeline sheet section 1 with the choices of docs/decisions.md. Nothing is silently changed:
an unknown, ill-typed, conflicting or out-of-range field is an `InvalidRequestError` that names the
field, the value and the legal range. Alignments that the contract states (frames up to 17 n + 5)
are reported back in the metadata.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

from minimax_h3.core.canvas import canvas_from_ratio, check_canvas
from minimax_h3.core.constants import TASKS, VIDEO_FPS
from minimax_h3.core.errors import InvalidRequestError, NotAvailableError
from minimax_h3.core.lengths import align_frames_up, frames_from_seconds

MIN_SECONDS, MAX_SECONDS = 4.0, 15.0
MIN_FRAMES = round(MIN_SECONDS * VIDEO_FPS)  # requested, before alignment
MAX_FRAMES = align_frames_up(round(MAX_SECONDS * VIDEO_FPS))  # 362
DEFAULT_FRAMES = 124
MIN_STEPS, MAX_STEPS, DEFAULT_STEPS = 2, 200, 50
MAX_OUTPUTS = 10
MAX_SEED = 2**63 - 1
MAX_PROMPT_BYTES = 32_768
MAX_PROMPT_TOKENS = 8192  # attention is quadratic in them, and the encoder serves one at a time
MAX_OPTIONS_BYTES = 65_536
MIN_FLOW_SHIFT, MAX_FLOW_SHIFT = 0.01, 100.0
SHIFT_LEGAL = f"{MIN_FLOW_SHIFT:g}..{MAX_FLOW_SHIFT:g}"
DEFAULT_SEED = 42
DEFAULT_RATIO = "16:9"
NOISE_RECIPES = ("per_stream", "single_stream")
X264_PRESETS = (
    *("ultrafast", "superfast", "veryfast", "faster", "fast", "medium", "slow", "slower"),
    "veryslow",
)
DEFAULT_PRESET, DEFAULT_CRF = "veryfast", 18
PRIORITIES, DEFAULT_PRIORITY = ("low", "normal", "high"), "normal"
MAX_DEADLINE_S = 86_400.0
MAX_CLIENT_CHARS = 64


@dataclass(frozen=True, slots=True)
class Field:
    """One request field: its JSON type, its legal values in words, and its meaning."""

    kind: type
    legal: str
    meaning: str
    default: str = "-"


FIELDS = MappingProxyType(
    {
        "prompt": Field(
            str,
            f"1..{MAX_PROMPT_BYTES} bytes of UTF-8, up to {MAX_PROMPT_TOKENS} tokens, not blank",
            "what to make",
        ),
        "task": Field(str, "one of " + ", ".join(TASKS), "only t2va is served so far", "inferred"),
        "width": Field(int, "multiple of 32, with height", "canvas width, pixels", "by ratio"),
        "height": Field(int, "multiple of 32, with width", "canvas height, pixels", "by ratio"),
        "aspect_ratio": Field(
            str, "W:H between 1:4 and 4:1", "canvas on the 768 short edge", DEFAULT_RATIO
        ),
        "duration": Field(
            float, f"{MIN_SECONDS:g}..{MAX_SECONDS:g} s", "length, seconds", "5.0 (124 frames)"
        ),
        "num_frames": Field(
            int, f"{MIN_FRAMES}..{MAX_FRAMES}", "length, aligned up to 17 n + 5", "124"
        ),
        "num_inference_steps": Field(
            int, f"{MIN_STEPS}..{MAX_STEPS}", "sigma points; N points are N - 1 forwards", "50"
        ),
        "seed": Field(int, "0..2^63 - 1", "noise seed of the first clip", str(DEFAULT_SEED)),
        "num_outputs": Field(int, f"1..{MAX_OUTPUTS}", "clips; clip i uses seed + i", "1"),
        "fps": Field(float, "24", "the model's only frame rate", "24"),
        "return_frames": Field(bool, "true or false", "also fill the FRAMES output", "false"),
        "flow_shift": Field(float, SHIFT_LEGAL, "video sigma shift", "checkpoint's, 12"),
        "audio_flow_shift": Field(float, SHIFT_LEGAL, "audio sigma shift", "checkpoint's, 3"),
        "noise_recipe": Field(
            str, "one of " + ", ".join(NOISE_RECIPES), "how noise is drawn", "per_stream"
        ),
        "video_preset": Field(
            str, "one of " + ", ".join(X264_PRESETS), "H.264 preset", DEFAULT_PRESET
        ),
        "video_crf": Field(int, "0..51", "H.264 constant rate factor", str(DEFAULT_CRF)),
        "priority": Field(
            str, "one of " + ", ".join(PRIORITIES), "who gets a free turn first", DEFAULT_PRIORITY
        ),
        "deadline_s": Field(
            float, f"above 0, up to {MAX_DEADLINE_S:g} s", "give up after this long", "none"
        ),
        "client": Field(
            str, f"1..{MAX_CLIENT_CHARS} characters", "whose job it is, for the client limit", "-"
        ),
    }
)

# Fields of features that are not built yet: refused by name, so that adding one changes no meaning.
RESERVED_FIELDS = frozenset(
    {
        *("keyframes", "images", "videos", "audios", "references", "frame_indices"),
        *("start_time_seconds", "audio_mode", "quality", "profile", "lora", "pad_seq_len"),
        *("video_noise_mask", "audio_noise_mask", "source_video", "source_audio"),
        *("long_video", "long_video_mode", "continuation_window_frames"),
        *("continuation_overlap_frames", "continuation_prompts", "latent_upscale"),
        *("latent_refine", "exact_size"),
    }
)
# Fields that this guidance-distilled model has no use for; accepting them would promise an effect.
MEANINGLESS_FIELDS = frozenset(
    {"negative_prompt", "guidance_scale", "guidance_scale_2", "true_cfg_scale", "cfg_parallel_size"}
)


def _refuse(field: str, value: object, legal: str) -> InvalidRequestError:
    # A float32 tensor's 3.9 is 3.9000000953674316, which nobody wrote; a whole float shows as one.
    short = isinstance(value, float) and not value.is_integer()
    shown = f"{value:g}" if short else repr(value)
    return InvalidRequestError(f"{field}: {shown[:200]} is not legal; legal: {legal}")


def parse_options(text: str) -> dict[str, object]:
    """Parse the OPTIONS tensor: one flat JSON object.

    Raises:
        InvalidRequestError: not JSON, not an object, too long, or a key given twice.
    """

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        seen: dict[str, object] = {}
        for key, value in pairs:
            if key in seen:
                raise InvalidRequestError(f"options: field {key!r} is given twice")
            seen[key] = value
        return seen

    if len(text.encode()) > MAX_OPTIONS_BYTES:
        raise InvalidRequestError(f"options: longer than {MAX_OPTIONS_BYTES} bytes")
    try:
        options = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"options: not JSON ({error}); legal: a JSON object") from error
    if not isinstance(options, dict):
        raise _refuse("options", options, "a JSON object")
    return options


def _typed(name: str, value: object) -> object:
    """Check the JSON type of one field; an int is a legal float, a bool is never a number."""
    field = FIELDS[name]
    if field.kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise _refuse(name, value, field.legal)
        return number
    if field.kind is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if field.kind in (str, bool) and isinstance(value, field.kind):
        return value
    raise _refuse(name, value, f"{field.legal} ({field.kind.__name__})")


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A validated request. Build it with `from_fields`; every attribute is resolved.

    Attributes:
        width, height: canvas in pixels.
        num_frames: aligned frame count (17 n + 5).
        num_points: sigma points; `num_points - 1` forwards are run.
        flow_shift, audio_flow_shift: None means the checkpoint's own value.
        deadline_s: seconds from receipt after which nobody wants the clip; None means no limit.
        client: empty when the request names none.
    """

    prompt: str
    task: str
    width: int
    height: int
    num_frames: int
    num_points: int
    seed: int
    num_outputs: int
    return_frames: bool
    flow_shift: float | None
    audio_flow_shift: float | None
    noise_recipe: str
    video_preset: str
    video_crf: int
    priority: str = DEFAULT_PRIORITY
    deadline_s: float | None = None
    client: str = ""

    @classmethod
    def from_fields(cls, raw: Mapping[str, object]) -> "GenerationRequest":
        """Validate raw fields (tensor inputs and OPTIONS merged, lower-case names).

        Raises:
            InvalidRequestError: names the field, the value and the legal range.
            NotAvailableError: the field belongs to a feature that this version does not have.
        """
        given = {name: _typed(name, value) for name, value in _known(raw).items()}
        width, height = _canvas(given)
        request = cls(
            prompt=_prompt(given),
            task=_choice(given, "task", TASKS, "t2va"),
            width=width,
            height=height,
            num_frames=_frames(given),
            num_points=_integer(given, "num_inference_steps", MIN_STEPS, MAX_STEPS, DEFAULT_STEPS),
            seed=_integer(given, "seed", 0, MAX_SEED, DEFAULT_SEED),
            num_outputs=_integer(given, "num_outputs", 1, MAX_OUTPUTS, 1),
            return_frames=bool(given.get("return_frames", False)),
            flow_shift=_shift(given, "flow_shift"),
            audio_flow_shift=_shift(given, "audio_flow_shift"),
            noise_recipe=_choice(given, "noise_recipe", NOISE_RECIPES, NOISE_RECIPES[0]),
            video_preset=_choice(given, "video_preset", X264_PRESETS, DEFAULT_PRESET),
            video_crf=_integer(given, "video_crf", 0, 51, DEFAULT_CRF),
            priority=_choice(given, "priority", PRIORITIES, DEFAULT_PRIORITY),
            deadline_s=_deadline(given),
            client=_client(given),
        )
        _check_fps(given)
        if request.seed + request.num_outputs - 1 > MAX_SEED:
            raise _refuse("seed", request.seed, "seed + num_outputs - 1 up to 2^63 - 1")
        return request


def _known(raw: Mapping[str, object]) -> Mapping[str, object]:
    for name, value in raw.items():
        if name in RESERVED_FIELDS:
            raise NotAvailableError(f"{name}: reserved for a feature this version does not have")
        if name in MEANINGLESS_FIELDS:
            raise _refuse(
                name, value, "absent; the model is guidance-distilled and has no use for it"
            )
        if name not in FIELDS:
            raise InvalidRequestError(
                f"{name[:100]}: unknown request field; known fields: {', '.join(FIELDS)}"
            )
    return raw


def _prompt(given: Mapping[str, object]) -> str:
    prompt = given.get("prompt")
    legal = FIELDS["prompt"].legal
    if prompt is None:
        raise InvalidRequestError(f"prompt: absent; legal: {legal}")
    if not isinstance(prompt, str) or not prompt.strip():
        raise _refuse("prompt", prompt, legal)
    try:
        size = len(prompt.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"prompt: not valid Unicode ({error.reason}); legal: {legal}"
        ) from error
    if size > MAX_PROMPT_BYTES:
        raise InvalidRequestError(f"prompt: {size} bytes is not legal; legal: {legal}")
    return prompt


def _choice(given: Mapping[str, object], name: str, legal: tuple[str, ...], default: str) -> str:
    value = given.get(name, default)
    if value not in legal:
        raise _refuse(name, value, FIELDS[name].legal)
    return str(value)


def _integer(given: Mapping[str, object], name: str, low: int, high: int, default: int) -> int:
    value = given.get(name, default)
    if not isinstance(value, int) or not low <= value <= high:
        raise _refuse(name, value, FIELDS[name].legal)
    return value


def _shift(given: Mapping[str, object], name: str) -> float | None:
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, float) or not MIN_FLOW_SHIFT <= value <= MAX_FLOW_SHIFT:
        raise _refuse(name, value, FIELDS[name].legal)
    return value


def _deadline(given: Mapping[str, object]) -> float | None:
    value = given.get("deadline_s")
    if value is None:
        return None
    if not isinstance(value, float) or not 0 < value <= MAX_DEADLINE_S:
        raise _refuse("deadline_s", value, FIELDS["deadline_s"].legal)
    return value


def _client(given: Mapping[str, object]) -> str:
    value = str(given.get("client", ""))
    if "client" in given and not 1 <= len(value) <= MAX_CLIENT_CHARS:
        raise _refuse("client", value, FIELDS["client"].legal)
    return value


def _frames(given: Mapping[str, object]) -> int:
    if "duration" in given and "num_frames" in given:
        raise InvalidRequestError("duration: given together with num_frames; legal: one of the two")
    if "duration" in given:
        seconds = given["duration"]
        if not isinstance(seconds, float) or not MIN_SECONDS <= seconds <= MAX_SECONDS:
            raise _refuse("duration", seconds, f"[{MIN_SECONDS:g}, {MAX_SECONDS:g}] seconds")
        return frames_from_seconds(seconds)
    return align_frames_up(_integer(given, "num_frames", MIN_FRAMES, MAX_FRAMES, DEFAULT_FRAMES))


def _check_fps(given: Mapping[str, object]) -> None:
    if given.get("fps", float(VIDEO_FPS)) != VIDEO_FPS:
        raise _refuse("fps", given["fps"], FIELDS["fps"].legal)


def _canvas(given: Mapping[str, object]) -> tuple[int, int]:
    width, height = given.get("width"), given.get("height")
    if (width is None) != (height is None):
        alone = "height" if width is None else "width"
        raise _refuse(alone, given[alone], "width and height together, or neither")
    if width is None or height is None:
        return canvas_from_ratio(str(given.get("aspect_ratio", DEFAULT_RATIO)))
    if "aspect_ratio" in given:
        raise _refuse(
            "aspect_ratio", given["aspect_ratio"], "absent when width and height are given"
        )
    assert isinstance(width, int)
    assert isinstance(height, int)
    check_canvas(width, height)
    return width, height


REQUEST_ATTRIBUTES = tuple(field.name for field in fields(GenerationRequest))
