"""A validated request, built from the fields of `core.fields`.

Source: pipeline sheet section 1 with the choices of docs/decisions.md. Nothing is silently changed:
an unknown, ill-typed, conflicting or out-of-range field is an `InvalidRequestError` that names the
field, the value and the legal range. Alignments that the contract states (frames up to 17 n + 5)
are reported back in the metadata.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from minimax_h3.core.canvas import RELEASED, CanvasRule, canvas_from_ratio, check_canvas
from minimax_h3.core.conditions import FIRST_FRAME, LAST_FRAME
from minimax_h3.core.constants import TASK_FL2VA, TASK_REF2VA, TASK_T2VA, TASKS, VIDEO_FPS
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.core.fields import (
    AUDIO_LOCK_SOURCE,
    AUDIO_MODES,
    AUDIO_NATIVE,
    DEFAULT_CRF,
    DEFAULT_FRAMES,
    DEFAULT_PRESET,
    DEFAULT_PRIORITY,
    DEFAULT_SEED,
    DEFAULT_STEPS,
    FIELDS,
    MAX_CLIENT_CHARS,
    MAX_DEADLINE_S,
    MAX_FLOW_SHIFT,
    MAX_FRAMES,
    MAX_OUTPUTS,
    MAX_PROMPT_BYTES,
    MAX_SECONDS,
    MAX_SEED,
    MAX_STEPS,
    MIN_FLOW_SHIFT,
    MIN_FRAMES,
    MIN_SECONDS,
    MIN_STEPS,
    NOISE_RECIPES,
    PRIORITIES,
    X264_PRESETS,
    check_types,
)
from minimax_h3.core.lengths import align_frames_up, frames_from_seconds
from minimax_h3.core.limits import LIMITS, check
from minimax_h3.core.refusals import refuse, shown

# What `frame_indices` may say, by the number of keyframes; the first is the default.
SIGNATURES: Mapping[int, tuple[tuple[int, ...], ...]] = {
    1: ((FIRST_FRAME,), (LAST_FRAME,)),
    2: ((FIRST_FRAME, LAST_FRAME),),
}


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A validated request. Build it with `from_fields`; every attribute is resolved.

    Attributes:
        width, height: canvas in pixels; 0 while it is still to follow the first keyframe.
        num_frames: aligned frame count (17 n + 5).
        num_points: sigma points; `num_points - 1` forwards are run.
        flow_shift, audio_flow_shift: None means the checkpoint's own value.
        keyframes, references: elements as the client sent them, in its order.
        frame_indices: 0 (first) or -1 (last), one per keyframe.
        start_times: seconds to skip, one per reference video, or empty.
        audio_mode: `lock_source` keeps the only reference sound as the clip's sound.
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
    keyframes: tuple[bytes, ...] = field(default=(), repr=False)
    references: tuple[bytes, ...] = field(default=(), repr=False)
    frame_indices: tuple[int, ...] = ()
    start_times: tuple[float, ...] = ()
    audio_mode: str = AUDIO_NATIVE
    priority: str = DEFAULT_PRIORITY
    deadline_s: float | None = None
    client: str = ""

    @classmethod
    def from_fields(
        cls, raw: Mapping[str, object], canvas: CanvasRule = RELEASED
    ) -> "GenerationRequest":
        """Validate raw fields (tensor inputs and OPTIONS merged, lower-case names).

        Args:
            raw: field name -> value.
            canvas: the checkpoint's rule, for requests without width and height.

        Raises:
            InvalidRequestError: names the field, the value and the legal range.
            NotAvailableError: the field belongs to a feature that this version does not have.
        """
        given = check_types(raw)
        task = _task(given)
        width, height = _canvas(given, canvas)
        request = cls(
            prompt=_prompt(given),
            task=task,
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
            keyframes=_elements(given, "keyframes"),
            references=_elements(given, "references"),
            frame_indices=_frame_indices(given),
            start_times=_start_times(given),
            audio_mode=_choice(given, "audio_mode", AUDIO_MODES, AUDIO_NATIVE),
            priority=_choice(given, "priority", PRIORITIES, DEFAULT_PRIORITY),
            deadline_s=_deadline(given),
            client=_client(given),
        )
        _check_fps(given)
        if request.seed + request.num_outputs - 1 > MAX_SEED:
            raise refuse("seed", request.seed, "seed + num_outputs - 1 up to 2^63 - 1")
        return request

    @property
    def locks_source(self) -> bool:
        """Whether a given sound becomes the clip's sound."""
        return self.audio_mode == AUDIO_LOCK_SOURCE


def _task(given: Mapping[str, object]) -> str:
    """The task, inferred when absent; refuses files that the task does not take.

    Keyframes make fl2va, references ref2va. A single reference under `lock_source` is the locked
    sound, which any task takes, so alone it makes neither.
    """
    keyframes, references = len(_elements(given, "keyframes")), len(_elements(given, "references"))
    if given.get("audio_mode") == AUDIO_LOCK_SOURCE and not references:
        raise refuse("audio_mode", AUDIO_LOCK_SOURCE, "native without a sound in references")
    only_locked = given.get("audio_mode") == AUDIO_LOCK_SOURCE and references == 1
    inferred = TASK_FL2VA if keyframes else TASK_T2VA
    if references and not only_locked:
        inferred = TASK_REF2VA
    task = _choice(given, "task", TASKS, inferred)
    if task == TASK_REF2VA and not references:
        raise InvalidRequestError(
            f"references: absent for task {task}; legal: at least one image or video, "
            f"{LIMITS['references'].legal}"
        )
    if keyframes and references and not only_locked:
        raise InvalidRequestError(
            f"keyframes, references: {keyframes} and {references} files are not legal together; "
            f"legal: keyframes (h3 generate --first, --last) for task {TASK_FL2VA}, or references "
            f"(--ref) for task {TASK_REF2VA}; only a sound that audio_mode lock_source keeps goes "
            "with keyframes"
        )
    if keyframes and task != TASK_FL2VA:
        raise refuse("keyframes", keyframes, f"absent for task {task}; they make {TASK_FL2VA}")
    if task == TASK_FL2VA and not keyframes:
        raise InvalidRequestError(f"keyframes: absent for task {task}; legal: 1 or 2 pictures")
    if references and task != TASK_REF2VA and not only_locked:
        raise refuse(
            "references",
            references,
            f"absent for task {task}, apart from the one sound that audio_mode lock_source keeps; "
            f"they make {TASK_REF2VA}",
        )
    return task


def _elements(given: Mapping[str, object], name: str) -> tuple[bytes, ...]:
    elements = given.get(name, ())
    assert isinstance(elements, tuple)
    if name in given:
        check(name, len(elements), name)
    return elements


def _frame_indices(given: Mapping[str, object]) -> tuple[int, ...]:
    keyframes = len(_elements(given, "keyframes"))
    if not keyframes:
        if "frame_indices" in given:
            raise refuse("frame_indices", given["frame_indices"], "absent without keyframes")
        return ()
    legal = SIGNATURES[keyframes]
    indices = given.get("frame_indices", legal[0])
    if indices not in legal:
        raise refuse(
            "frame_indices",
            indices,
            f"for {keyframes} keyframes " + " or ".join(str(list(one)) for one in legal),
        )
    assert isinstance(indices, tuple)
    return indices


def _start_times(given: Mapping[str, object]) -> tuple[float, ...]:
    times = given.get("start_time_seconds", ())
    assert isinstance(times, tuple)
    if any(time < 0 for time in times):
        raise refuse("start_time_seconds", times, FIELDS["start_time_seconds"].legal)
    if "start_time_seconds" in given and not 1 <= len(times) <= LIMITS["videos"].high:
        raise refuse("start_time_seconds", times, FIELDS["start_time_seconds"].legal)
    return times


def _prompt(given: Mapping[str, object]) -> str:
    prompt = given.get("prompt")
    legal = FIELDS["prompt"].legal
    if prompt is None:
        raise InvalidRequestError(f"prompt: absent; legal: {legal}")
    if not isinstance(prompt, str) or not prompt.strip():
        raise refuse("prompt", prompt, legal)
    size = len(prompt.encode())
    if size > MAX_PROMPT_BYTES:
        raise InvalidRequestError(f"prompt: {size:,} bytes are not legal; legal: {legal}")
    return prompt


def _choice(given: Mapping[str, object], name: str, legal: tuple[str, ...], default: str) -> str:
    value = given.get(name, default)
    if value not in legal:
        raise refuse(name, value, FIELDS[name].legal)
    return str(value)


def _integer(given: Mapping[str, object], name: str, low: int, high: int, default: int) -> int:
    value = given.get(name, default)
    if not isinstance(value, int) or not low <= value <= high:
        raise refuse(name, value, FIELDS[name].legal)
    return value


def _shift(given: Mapping[str, object], name: str) -> float | None:
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, float) or not MIN_FLOW_SHIFT <= value <= MAX_FLOW_SHIFT:
        raise refuse(name, value, FIELDS[name].legal)
    return value


def _deadline(given: Mapping[str, object]) -> float | None:
    value = given.get("deadline_s")
    if value is None:
        return None
    if not isinstance(value, float) or not 0 < value <= MAX_DEADLINE_S:
        raise refuse("deadline_s", value, FIELDS["deadline_s"].legal)
    return value


def _client(given: Mapping[str, object]) -> str:
    value = str(given.get("client", ""))
    if "client" in given and not 1 <= len(value) <= MAX_CLIENT_CHARS:
        raise refuse("client", value, FIELDS["client"].legal)
    return value


def _frames(given: Mapping[str, object]) -> int:
    if "duration" in given and "num_frames" in given:
        raise refuse(
            "duration",
            given["duration"],
            f"absent with num_frames, here {shown(given['num_frames'])}; one of the two",
        )
    if "duration" in given:
        seconds = given["duration"]
        if not isinstance(seconds, float) or not MIN_SECONDS <= seconds <= MAX_SECONDS:
            raise refuse("duration", seconds, f"[{MIN_SECONDS:g}, {MAX_SECONDS:g}] seconds")
        return frames_from_seconds(seconds)
    return align_frames_up(_integer(given, "num_frames", MIN_FRAMES, MAX_FRAMES, DEFAULT_FRAMES))


def _check_fps(given: Mapping[str, object]) -> None:
    if given.get("fps", float(VIDEO_FPS)) != VIDEO_FPS:
        raise refuse("fps", given["fps"], FIELDS["fps"].legal)


def _canvas(given: Mapping[str, object], rule: CanvasRule) -> tuple[int, int]:
    """Width and height as given, by ratio, or (0, 0) when the first keyframe will set them."""
    width, height = given.get("width"), given.get("height")
    if (width is None) != (height is None):
        alone = "height" if width is None else "width"
        raise refuse(alone, given[alone], "width and height together, or neither")
    if "aspect_ratio" in given and width is not None:
        raise refuse(
            "aspect_ratio", given["aspect_ratio"], "absent when width and height are given"
        )
    if "aspect_ratio" in given and given.get("keyframes"):
        raise refuse(
            "aspect_ratio",
            given["aspect_ratio"],
            "absent with keyframes; the canvas has the first one's ratio, or is width and height",
        )
    if isinstance(width, int) and isinstance(height, int):
        check_canvas(width, height)
        return width, height
    if given.get("keyframes"):
        return 0, 0
    return canvas_from_ratio(str(given.get("aspect_ratio", rule.ratio)), rule)
