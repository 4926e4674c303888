"""From facts to conditions, and from conditions to the pixels and samples that are encoded."""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from minimax_h3.core.canvas import RELEASED, CanvasRule
from minimax_h3.core.conditions import (
    AUDIO,
    DRIVING_AUDIO,
    IMAGE,
    KEYFRAME,
    VIDEO,
    Condition,
)
from minimax_h3.core.constants import (
    AUDIO_HOP_SAMPLES,
    PRESENTED_FRAME_STEP,
    VAE_CLIP_FRAMES,
    VAE_TAIL_FRAMES,
    VIDEO_FPS,
)
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.core.limits import check
from minimax_h3.core.plan import Plan
from minimax_h3.media.facts import SourceFacts
from minimax_h3.media.kinds import FileFormat, identify
from minimax_h3.media.pictures import (
    Pixels,
    prepare_keyframe,
    read_picture,
    reference_size,
    resize,
)
from minimax_h3.media.sounds import (
    Wave,
    read_sound,
    resampled_length,
    skipped_samples,
    sound_samples,
)
from minimax_h3.media.videos import (
    VideoWindow,
    prepare_video,
    presented_frames,
    video_canvas,
    video_origin,
)

_PICTURES_AHEAD = 2  # decoded at the same time; bounds the memory


@dataclass(frozen=True, slots=True)
class PreparedMedia:
    """What the encoders read of one condition.

    Attributes:
        frames: uint8 [H, W, 3] each, exactly `condition.num_frames` of them, made while they are
            read; empty for a sound.
        waveform: fp32 [2, samples] at 32 kHz, or None.
    """

    frames: Iterator[Pixels]
    waveform: Wave | None


def plan_keyframe(
    facts: SourceFacts, source: int, width: int, height: int, frame_index: int
) -> Condition:
    """The condition of a keyframe.

    Args:
        facts: of the file.
        source: its index in KEYFRAMES.
        width: of the request's canvas in pixels.
        height: of the request's canvas in pixels.
        frame_index: 0 or -1.

    Raises:
        InvalidRequestError: not a picture.
    """
    if facts.kind != IMAGE:
        raise InvalidRequestError(
            f"keyframes[{source}]: {facts.format} is not legal; legal: a picture"
        )
    return Condition(
        KEYFRAME,
        source,
        facts.digest,
        width=width,
        height=height,
        num_frames=1,
        presented_frames=1,
        frame_index=frame_index,
    )


def plan_reference(
    facts: SourceFacts,
    source: int,
    target_frames: int,
    start_s: float = 0.0,
    *,
    driving: bool = False,
    canvas: CanvasRule = RELEASED,
) -> Condition:
    """The condition of a reference.

    Args:
        facts: of the file.
        source: its index in REFERENCES.
        target_frames: frames of the clip that is made.
        start_s: seconds to skip of a video and its soundtrack.
        driving: True for the sound that takes the place of the clip's own.
        canvas: the checkpoint's rule.

    Raises:
        InvalidRequestError: too little of a video is left behind `start_s`.
    """
    name = f"references[{source}]"
    if facts.kind == IMAGE:
        width, height = reference_size(facts.width, facts.height, canvas)
        return Condition(
            IMAGE,
            source,
            facts.digest,
            width=width,
            height=height,
            num_frames=1,
            presented_frames=1,
        )
    if facts.kind == AUDIO:
        return Condition(
            DRIVING_AUDIO if driving else AUDIO,
            source,
            facts.digest,
            audio_latents=_audio_latents(facts, Fraction(0), target_frames, name),
        )
    assert facts.video is not None
    start = Fraction(start_s)
    check("video_seconds", float(facts.video.timeline.span - start), f"{name}: after its start")
    shown = presented_frames(facts.video.timeline.span, start, target_frames)
    width, height = video_canvas(facts.video, canvas)
    return Condition(
        VIDEO,
        source,
        facts.digest,
        width=width,
        height=height,
        num_frames=_aligned_down(shown),
        presented_frames=shown,
        audio_latents=_audio_latents(facts, start, target_frames, name),
        start_s=start_s,
    )


def _aligned_down(frames: int) -> int:
    """Largest `17 n + 5`, n >= 1, up to `frames`; the limits leave at least two seconds."""
    return (frames - VAE_TAIL_FRAMES) // VAE_CLIP_FRAMES * VAE_CLIP_FRAMES + VAE_TAIL_FRAMES


def _audio_latents(facts: SourceFacts, start: Fraction, target_frames: int, name: str) -> int:
    sound = facts.sound
    if sound is None:
        return 0
    skipped = 0
    if facts.video is not None:
        skipped = skipped_samples(facts.video.timeline.first + start, sound.start, sound.rate_hz)
    left = sound.samples - skipped
    if left <= 0:
        raise InvalidRequestError(
            f"{name}: its soundtrack ends before {float(start):g} s; legal: sound behind the start"
        )
    used = min(left, sound_samples(target_frames / VIDEO_FPS, sound.rate_hz))
    return -(-resampled_length(used, sound.rate_hz) // AUDIO_HOP_SAMPLES)


def sample_presented(condition: Condition, encoded: bytes) -> Pixels:
    """The pixels that the text encoder is shown of a condition.

    Returns:
        uint8 [H, W, 3] of a picture; uint8 [n, H, W, 3] of a video, every twelfth of its
        `presented_frames` prepared frames.

    Raises:
        InvalidRequestError: damage.
    """
    if condition.kind == VIDEO:
        name, form = _named(condition, encoded)
        window = _window(condition, condition.presented_frames, PRESENTED_FRAME_STEP)
        return np.stack(list(prepare_video(encoded, form, name, window)))
    return _picture(condition, encoded)


def present_all(conditions: Sequence[Condition], files: Iterable[bytes]) -> Iterator[Pixels]:
    """`sample_presented` of every condition that has a picture, two at a time, in order.

    Args:
        conditions: of a request.
        files: the encoded file of each condition.
    """
    pending: deque[Future[Pixels]] = deque()
    with ThreadPoolExecutor(_PICTURES_AHEAD, thread_name_prefix="pictures") as workers:
        for condition, encoded in zip(conditions, files, strict=True):
            if condition.presented_frames:
                pending.append(workers.submit(sample_presented, condition, encoded))
            if len(pending) >= _PICTURES_AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def load_condition(condition: Condition, encoded: bytes, plan: Plan) -> PreparedMedia:
    """What the encoders read of a condition.

    Args:
        condition: of `plan`.
        encoded: its file.
        plan: of the request; its length cuts sounds off.

    Raises:
        InvalidRequestError: the bytes are not those that the plan was made from, or damage; damage
            of a video may be raised while its frames are read.
    """
    digest = hashlib.sha256(encoded).hexdigest()
    if digest != condition.digest:
        raise InvalidRequestError(
            f"{_name(condition)}: changed since the request was planned (SHA-256 {digest}); "
            f"legal: {condition.digest}"
        )
    return PreparedMedia(
        frames=_frames(condition, encoded), waveform=_waveform(condition, encoded, plan)
    )


def _frames(condition: Condition, encoded: bytes) -> Iterator[Pixels]:
    if condition.kind == VIDEO:
        name, form = _named(condition, encoded)
        yield from prepare_video(encoded, form, name, _window(condition, condition.num_frames))
    elif condition.num_frames:
        yield _picture(condition, encoded)


def _waveform(condition: Condition, encoded: bytes, plan: Plan) -> Wave | None:
    if not condition.audio_latents:
        return None
    name, form = _named(condition, encoded)
    origin = None
    if condition.kind == VIDEO:
        origin = video_origin(encoded, form, name) + Fraction(condition.start_s)
    return read_sound(encoded, form, name, origin, plan.num_frames / VIDEO_FPS)


def _name(condition: Condition) -> str:
    group = "keyframes" if condition.kind == KEYFRAME else "references"
    return f"{group}[{condition.source}]"


def _named(condition: Condition, encoded: bytes) -> tuple[str, FileFormat]:
    name = _name(condition)
    return name, identify(encoded, name)


def _window(condition: Condition, num_frames: int, stride: int = 1) -> VideoWindow:
    return VideoWindow(
        condition.width, condition.height, Fraction(condition.start_s), num_frames, stride
    )


def _picture(condition: Condition, encoded: bytes) -> Pixels:
    name, form = _named(condition, encoded)
    picture = read_picture(encoded, form.name, name)
    if condition.kind == KEYFRAME:
        crop = condition.source > 0
        return prepare_keyframe(picture, condition.width, condition.height, crop=crop)
    return resize(picture, condition.width, condition.height)
