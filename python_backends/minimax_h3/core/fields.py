"""The fields of a request: one table of names, types, legal values and meanings.

`core.request` validates by it; the client, the documents and the error texts repeat it.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from minimax_h3.core.canvas import SIDE_LEGAL
from minimax_h3.core.constants import TASKS, VIDEO_FPS
from minimax_h3.core.errors import InvalidRequestError, NotAvailableError
from minimax_h3.core.lengths import align_frames_up
from minimax_h3.core.limits import LIMITS
from minimax_h3.core.refusals import nearest, refuse, shown, shown_name
from minimax_h3.core.texts import is_plain

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
AUDIO_NATIVE, AUDIO_LOCK_SOURCE = "native", "lock_source"
AUDIO_MODES = (AUDIO_NATIVE, AUDIO_LOCK_SOURCE)
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
    """One request field.

    Attributes:
        kind: type of a value, or of one element of a list.
        legal: the legal values in words.
        meaning: what it does.
        default: in words.
        is_list: the value is a list; a single value stands for a list of one.
    """

    kind: type
    legal: str
    meaning: str
    default: str = "-"
    is_list: bool = False

    @property
    def type_name(self) -> str:
        """The type in words, for documents and refusals."""
        name = "file" if self.kind is bytes else self.kind.__name__
        return f"list of {name}" if self.is_list else name


FIELDS: Mapping[str, Field] = MappingProxyType(
    {
        "prompt": Field(
            str,
            f"1..{MAX_PROMPT_BYTES} bytes of UTF-8, up to {MAX_PROMPT_TOKENS} tokens, not blank, "
            "without control characters but tabs and line breaks",
            "what to make",
        ),
        "task": Field(str, "one of " + ", ".join(TASKS), "what the files are for", "inferred"),
        "width": Field(int, f"{SIDE_LEGAL}, with height", "canvas width, pixels", "by ratio"),
        "height": Field(int, f"{SIDE_LEGAL}, with width", "canvas height, pixels", "by ratio"),
        "aspect_ratio": Field(
            str,
            "W:H between 1:4 and 4:1",
            "canvas on the checkpoint's short edge, 768 if released",
            f"{DEFAULT_RATIO} if released",
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
        "keyframes": Field(
            bytes, LIMITS["keyframes"].legal, "frames to start or end on (fl2va)", is_list=True
        ),
        "frame_indices": Field(
            int, "[0], [-1] or [0, -1]", "first, last frame", "[0], [0, -1]", is_list=True
        ),
        "references": Field(
            bytes, LIMITS["references"].legal, "pictures, videos, sounds (ref2va)", is_list=True
        ),
        "start_time_seconds": Field(
            float, "0 or more, one per video", "skipped of each video", "0", is_list=True
        ),
        "audio_mode": Field(
            str, "one of " + ", ".join(AUDIO_MODES), "lock_source keeps a given sound", "native"
        ),
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
            str,
            f"1..{MAX_CLIENT_CHARS} characters, no control characters",
            "whose job it is, for the client limit",
        ),
    }
)

# Fields of features that are not built yet: refused by name, so that adding one changes no meaning.
RESERVED_FIELDS = frozenset(
    {
        *("quality", "profile", "lora", "pad_seq_len"),
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
# What other servers of this model call our fields: the refusal names ours.
OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("image", "images", "last_image"), "keyframes or references"),
        **dict.fromkeys(("videos", "audios", "input_reference", "input_references"), "references"),
        **dict.fromkeys(("image_reference", "video_reference", "audio_reference"), "references"),
        **dict.fromkeys(("frame_index", "keyframe_indices"), "frame_indices"),
        **dict.fromkeys(("seconds", "duration_seconds"), "duration"),
        **dict.fromkeys(("size", "resolution"), "width and height"),
        "num_outputs_per_prompt": "num_outputs",
        "start_time": "start_time_seconds",
    }
)


def parse_options(text: str) -> dict[str, object]:
    """Parse the OPTIONS tensor: one flat JSON object.

    Raises:
        InvalidRequestError: not JSON, not an object, too long, or a key given twice.
    """

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        seen: dict[str, object] = {}
        for key, value in pairs:
            if key in seen:
                raise InvalidRequestError(
                    f"options: field {shown(key)} is given twice, as {shown(seen[key])} and as "
                    f"{shown(value)}; legal: once"
                )
            seen[key] = value
        return seen

    size = len(text.encode(errors="surrogatepass"))
    if size > MAX_OPTIONS_BYTES:
        raise InvalidRequestError(
            f"options: {size:,} bytes are not legal; legal: up to {MAX_OPTIONS_BYTES:,}"
        )
    try:
        options = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        # Python's own limits on digits and on depth speak of Python.
        why = str(error) if isinstance(error, json.JSONDecodeError) else "too long or too deep"
        raise InvalidRequestError(
            f"options: {shown(text)} is not JSON ({why}); legal: a JSON object"
        ) from error
    if not isinstance(options, dict):
        raise refuse("options", options, "a JSON object")
    return options


def check_types(raw: Mapping[str, object]) -> dict[str, object]:
    """Refuse unknown names and wrong types; a list field's value becomes a tuple.

    Raises:
        InvalidRequestError: names the field, the value and what is legal.
        NotAvailableError: the field belongs to a feature that this version does not have.
    """
    return {name: _typed_field(name, value) for name, value in raw.items()}


def _typed_field(name: str, value: object) -> object:
    if name in RESERVED_FIELDS:
        raise NotAvailableError(
            f"{name}: reserved for a feature this version does not have, {shown(value)} is not "
            "legal; legal: absent"
        )
    if name in MEANINGLESS_FIELDS:
        raise refuse(name, value, "absent; the model is guidance-distilled and has no use for it")
    if name in OTHER_NAMES:
        raise InvalidRequestError(f"{name}: not a field here; legal: {OTHER_NAMES[name]}")
    if name not in FIELDS:
        close = nearest(name, FIELDS)
        raise InvalidRequestError(
            f"{shown_name(name)}: unknown request field; "
            f"{f'nearest: {close}; ' if close else ''}legal: the known fields {', '.join(FIELDS)}"
        )
    if not FIELDS[name].is_list:
        return _typed(name, value)
    elements = value if isinstance(value, list | tuple) else [value]
    return tuple(_typed(name, element) for element in elements)


def _typed(name: str, value: object) -> object:
    """Check the type of one value; an int is a legal float, a bool is never a number."""
    field = FIELDS[name]
    if field.kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise refuse(name, value, field.legal)
        return number
    if field.kind is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if field.kind is str and isinstance(value, str):
        return checked_text(name, value)
    if field.kind in (bool, bytes) and isinstance(value, field.kind):
        return value
    if field.kind is bytes:
        raise refuse(name, value, f"the bytes of a file, in the tensor {name.upper()}")
    raise refuse(name, value, f"{field.legal} ({field.type_name})")


def checked_text(name: str, text: str) -> str:
    """The text of a field, unless it holds what no text may; see `core.texts`.

    Raises:
        InvalidRequestError: names the field.
    """
    if not is_plain(text, prose=name == "prompt"):
        raise refuse(name, text, f"{FIELDS[name].legal}, in valid Unicode")
    return text
