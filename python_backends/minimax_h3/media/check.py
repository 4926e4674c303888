"""Is this MP4 what was asked for? Fifteen named checks, each with its own verdict.

Source: pipeline sheet section 8, "Harness checks per file".
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np

from minimax_h3.core.constants import (
    AUDIO_CHANNELS,
    AUDIO_LATENTS_PER_SECOND,
    AUDIO_SAMPLE_RATE_HZ,
    VIDEO_FPS,
)
from minimax_h3.core.lengths import audio_latents_from_frames, audio_samples_from_latents
from minimax_h3.media.probe import AudioFacts, Image, MediaFacts, Source, VideoFacts, probe

CLOCK_TOLERANCE_S = 1e-3
SYNC_TOLERANCE_S = 1 / 120
AAC_FRAME_SAMPLES = 1024
BT709_LIMITED = (1, 1, 1, 1)
MIN_LUMA_STD = 1.0
MIN_MOTION = 2.0  # luma levels; a frozen picture reaches 1.0 at crf 18, a small moving thing 30
MAX_BLANK_RUN_FRAMES = 4  # fewer than the 5 frames of the shortest piece that the decoder makes
MIN_RMS = 1e-4
MIN_SIDE_SHARE = 1e-4  # of the rms; equal channels differ by 0 here, by less elsewhere
# AAC gives noise at full scale back with peaks of 1.5, measured, though the wave was within 1.
MAX_DECODED_PEAK = 2.0
MIN_KEYFRAME_PSNR_DB = 20.0


class Status(str, Enum):
    """Verdict of one check."""

    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "n/a"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check: its number and name, the verdict, and what was seen."""

    number: int
    name: str
    status: Status
    detail: str


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the file should be. What is None is not compared.

    Attributes:
        width, height, num_frames: as requested, frames after alignment.
        first_keyframe, last_keyframe: prepared uint8 RGB [H, W, 3] that the clip must start or end
            with.
        min_keyframe_psnr_db: how near.
        metadata: the METADATA that came with the file.
        repeat: another file of the same request and seed.
        cached: the same request served through exact caches.
    """

    width: int | None = None
    height: int | None = None
    num_frames: int | None = None
    first_keyframe: Image | None = None
    last_keyframe: Image | None = None
    min_keyframe_psnr_db: float = MIN_KEYFRAME_PSNR_DB
    metadata: Mapping[str, object] | None = None
    repeat: Source | None = None
    cached: Source | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """All verdicts on one file."""

    results: tuple[CheckResult, ...]
    facts: MediaFacts

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that failed."""
        return tuple(result.name for result in self.results if result.status is Status.FAIL)

    def __str__(self) -> str:
        return "\n".join(
            f"{result.number:2d} {result.status.value:4s} {result.name}: {result.detail}"
            for result in self.results
        )


class _NotApplicableError(Exception):
    """Carries the reason why a check has nothing to compare."""


_Problems = Iterator[str]
_Check = Callable[[MediaFacts, Expectation], _Problems]


def check_mp4(source: Source, expectation: Expectation | None = None) -> Report:
    """Run all checks on a file.

    Args:
        source: a path, or the bytes of a file.
        expectation: what it should be; None checks what holds for every file of this product.

    Returns:
        The verdicts; a missing, damaged or hostile file fails checks and raises nothing.
    """
    return check_facts(probe(source), expectation or Expectation())


def check_facts(facts: MediaFacts, wanted: Expectation) -> Report:
    """`check_mp4` with what `probe` found.

    A file that does not open fails the check of its container, and nothing else can be said of it.
    """
    results = tuple(
        _run(number, name, check, facts, wanted)
        for number, (name, check) in enumerate(_CHECKS.items(), start=1)
    )
    return Report(results, facts)


def frame_hashes(source: Source) -> list[str]:
    """SHA-256 of every decoded frame.

    Raises:
        ValueError: the file does not decode.
    """
    return list(_decoded(source)[0].frame_hashes)


def sample_hash(source: Source) -> str:
    """SHA-256 of the decoded sound.

    Raises:
        ValueError: the file does not decode.
    """
    return _decoded(source)[1].sample_hash


def _decoded(source: Source) -> tuple[VideoFacts, AudioFacts]:
    facts = probe(source)
    if facts.problem or facts.decode_problem or not facts.video or not facts.audio:
        reason = facts.problem or facts.decode_problem or "picture or sound is absent"
        raise ValueError(f"media file: {reason}")
    return facts.video, facts.audio


def _run(
    number: int, name: str, check: _Check, facts: MediaFacts, wanted: Expectation
) -> CheckResult:
    try:
        if facts.problem and check is not _container:
            raise _NotApplicableError("the file does not open")
        problems = list(check(facts, wanted))
    except _NotApplicableError as reason:
        return CheckResult(number, name, Status.NOT_APPLICABLE, str(reason))
    if problems:
        return CheckResult(number, name, Status.FAIL, "; ".join(problems))
    return CheckResult(number, name, Status.PASS, "ok")


def _container(facts: MediaFacts, _: Expectation) -> _Problems:
    if facts.problem:
        yield f"does not open ({facts.problem})"
        return
    if facts.boxes.problem:
        yield facts.boxes.problem
    if not facts.boxes.moov_first:
        yield f"moov does not come before mdat ({' '.join(facts.boxes.kinds[:8])})"


def _streams(facts: MediaFacts, _: Expectation) -> _Problems:
    if (facts.num_video_streams, facts.num_audio_streams) != (1, 1):
        yield f"{facts.num_video_streams} video and {facts.num_audio_streams} audio streams"


def _video_format(facts: MediaFacts, wanted: Expectation) -> _Problems:
    if facts.video is None:
        yield "no video"
        return
    video = facts.video
    if (video.codec, video.pixel_format) != ("h264", "yuv420p"):
        yield f"{video.codec} {video.pixel_format}, not h264 yuv420p"
    if wanted.width not in (None, video.width) or wanted.height not in (None, video.height):
        yield f"{video.width}x{video.height}, not {wanted.width}x{wanted.height}"
    if video.rate != VIDEO_FPS:
        yield f"{video.rate} frames per second, not {VIDEO_FPS}"


def _frame_count(facts: MediaFacts, wanted: Expectation) -> _Problems:
    decoded = len(facts.video.frame_hashes) if facts.video else 0
    if wanted.num_frames not in (None, decoded) or not decoded:
        yield f"{decoded} frames decoded, not {wanted.num_frames or 'one or more'}"


def _num_frames(facts: MediaFacts, wanted: Expectation) -> int:
    """Frames that the sound must fit: the requested ones, else those in the file."""
    return wanted.num_frames or (len(facts.video.frame_hashes) if facts.video else 0)


def _audio_format(facts: MediaFacts, wanted: Expectation) -> _Problems:
    if facts.audio is None:
        yield "no audio"
        return
    audio = facts.audio
    seen = (audio.codec, audio.sample_rate_hz, audio.channels)
    if seen != ("aac", AUDIO_SAMPLE_RATE_HZ, AUDIO_CHANNELS):
        yield f"{seen}, not aac {AUDIO_SAMPLE_RATE_HZ} Hz with {AUDIO_CHANNELS} channels"
    latents = audio_latents_from_frames(_num_frames(facts, wanted))
    seconds, samples = latents / AUDIO_LATENTS_PER_SECOND, audio_samples_from_latents(latents)
    if audio.duration_s is None or abs(audio.duration_s - seconds) > CLOCK_TOLERANCE_S:
        yield f"lasts {audio.duration_s} s, not {seconds:g} s"
    if not samples <= audio.samples < samples + AAC_FRAME_SAMPLES:
        yield f"{audio.samples} samples decoded, not {samples} to {samples + AAC_FRAME_SAMPLES - 1}"


def _sync(facts: MediaFacts, _: Expectation) -> _Problems:
    video = facts.video.duration_s if facts.video else None
    audio = facts.audio.duration_s if facts.audio else None
    if video is None or audio is None:
        yield f"video lasts {video} s, audio {audio} s"
    elif abs(video - audio) > SYNC_TOLERANCE_S + CLOCK_TOLERANCE_S / 10:
        yield f"video {video:.4f} s and audio {audio:.4f} s differ by more than 1/120 s"


def _start_times(facts: MediaFacts, _: Expectation) -> _Problems:
    for name, stream in (("video", facts.video), ("audio", facts.audio)):
        if stream is None or stream.start_s != 0.0:
            yield f"{name} starts at {stream.start_s if stream else None}"


def _colour_tags(facts: MediaFacts, _: Expectation) -> _Problems:
    seen = facts.video.colour if facts.video else None
    if seen != BT709_LIMITED:
        yield f"primaries, transfer, matrix, range {seen}, not BT.709 limited {BT709_LIMITED}"


def _decode(facts: MediaFacts, _: Expectation) -> _Problems:
    if facts.problem or facts.decode_problem:
        yield facts.problem or facts.decode_problem
    if facts.video is None or facts.audio is None:
        yield "picture or sound is absent"


def _picture(facts: MediaFacts, _: Expectation) -> _Problems:
    if facts.video is None:
        yield "no video"
        return
    if facts.video.luma_std <= MIN_LUMA_STD:
        yield f"constant picture (luma deviation {facts.video.luma_std:.3f})"
    if facts.video.blank_run > MAX_BLANK_RUN_FRAMES:
        yield f"{facts.video.blank_run} black or white frames in a row"
    if facts.video.motion <= MIN_MOTION:
        yield f"nothing moves (largest change {facts.video.motion:.2f} luma levels)"


def _sound(facts: MediaFacts, _: Expectation) -> _Problems:
    if facts.audio is None:
        yield "no audio"
        return
    if not facts.audio.finite:
        yield "samples are not finite"
    if facts.audio.peak > MAX_DECODED_PEAK:
        yield f"peak {facts.audio.peak:.3f}"
    if facts.audio.rms <= MIN_RMS:
        yield f"silent (rms {facts.audio.rms:.2e})"
    if facts.audio.side <= MIN_SIDE_SHARE * facts.audio.rms:
        yield "left equals right"


def _keyframes(facts: MediaFacts, wanted: Expectation) -> _Problems:
    if wanted.first_keyframe is None and wanted.last_keyframe is None:
        raise _NotApplicableError("no keyframe given")
    seen = (facts.video.first, facts.video.last) if facts.video else (None, None)
    given = (wanted.first_keyframe, wanted.last_keyframe)
    for name, frame, keyframe in zip(("first", "last"), seen, given, strict=True):
        if keyframe is None:
            continue
        if frame is None or frame.shape != keyframe.shape:
            shape = None if frame is None else frame.shape
            yield f"{name} frame {shape}, keyframe {keyframe.shape}"
        elif psnr_db(frame, keyframe) < wanted.min_keyframe_psnr_db:
            yield (
                f"{name} frame is {psnr_db(frame, keyframe):.1f} dB from its keyframe, "
                f"not {wanted.min_keyframe_psnr_db:g} or more"
            )


def psnr_db(one: Image, other: Image) -> float:
    """Peak signal-to-noise ratio of two uint8 images of one shape."""
    error = float(np.mean((one.astype(np.float64) - other) ** 2))
    return float("inf") if error == 0 else 10 * float(np.log10(255**2 / error))


def _metadata(facts: MediaFacts, wanted: Expectation) -> _Problems:
    if wanted.metadata is None:
        raise _NotApplicableError("no metadata given")
    video, audio = facts.video, facts.audio
    in_file = {
        "fps": float(video.rate) if video and video.rate else None,
        "num_frames": len(video.frame_hashes) if video else None,
        "duration_s": video.duration_s if video else None,
        "audio_s": audio.duration_s if audio else None,
    }
    for name, seen in in_file.items():
        stated = wanted.metadata.get(name)
        if name == "audio_s" and stated is None:
            continue
        if (
            not isinstance(stated, int | float)
            or seen is None
            or abs(stated - seen) > CLOCK_TOLERANCE_S
        ):
            yield f"{name} {stated!r}, in the file {seen}"


def _same_as(facts: MediaFacts, other: Source | None, reason: str) -> _Problems:
    if other is None:
        raise _NotApplicableError(reason)
    theirs = probe(other)
    if theirs.problem:
        named = "the other file" if isinstance(other, bytes) else str(other)
        yield f"{named} does not open ({theirs.problem})"
        return
    ours_frames = facts.video.frame_hashes if facts.video else []
    their_frames = theirs.video.frame_hashes if theirs.video else []
    pairs = itertools.zip_longest(ours_frames, their_frames)
    different = sum(mine != theirs_ for mine, theirs_ in pairs)
    if different or not ours_frames:
        yield f"{different} of {len(ours_frames)} frames differ"
    ours_sound = facts.audio.sample_hash if facts.audio else None
    if ours_sound != (theirs.audio.sample_hash if theirs.audio else None):
        yield "the sound differs"


def _repeat(facts: MediaFacts, wanted: Expectation) -> _Problems:
    yield from _same_as(facts, wanted.repeat, "no second file of the same request and seed")


def _cached(facts: MediaFacts, wanted: Expectation) -> _Problems:
    yield from _same_as(facts, wanted.cached, "no file of a cached run")


_CHECKS: Mapping[str, _Check] = {
    "container": _container,
    "streams": _streams,
    "video_format": _video_format,
    "frame_count": _frame_count,
    "audio_format": _audio_format,
    "sync": _sync,
    "start_times": _start_times,
    "colour_tags": _colour_tags,
    "decode": _decode,
    "picture": _picture,
    "sound": _sound,
    "keyframes": _keyframes,
    "metadata": _metadata,
    "repeat": _repeat,
    "cached": _cached,
}
