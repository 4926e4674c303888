"""`h3 eval`: what a clip shows and sounds like, or how good a checkpoint is on a held-out set."""

import argparse
import json
from pathlib import Path

import numpy as np

from build_engines.evaluation.objects import Frames
from build_engines.evaluation.quality import psnr, snr
from build_engines.evaluation.report import ClipFacts, judge, measure_clip, reference_look
from build_engines.evaluation.tones import Wave
from build_engines.train_tiny.captions import parse_caption, unread_words
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.core.fields import MIN_STEPS

_CLICK_WITHIN_S = 0.084  # two frames; a farther click belongs to another bounce
SUMMARY = "measure a clip of coloured shapes, or a checkpoint on the held-out set of prompts"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("file", type=Path, nargs="?", help="the MP4; or give --checkpoint")
    parser.add_argument("--caption", help="what was asked for; verdicts decide the exit code")
    parser.add_argument("--first", type=Path, help="picture that the first frame should be")
    parser.add_argument("--last", type=Path, help="picture that the last frame should be")
    parser.add_argument("--reference", type=Path, help="picture of the object that should appear")
    parser.add_argument("--original", type=Path, help="MP4 that this one reproduces: PSNR and SNR")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    suite = parser.add_argument_group("a checkpoint instead of a file")
    suite.add_argument("--checkpoint", type=Path, help="make and measure the held-out set")
    suite.add_argument("--output", type=Path, default=Path("out/eval"), help="[%(default)s]")
    suite.add_argument("--points", type=int, default=20, help="sigma points [%(default)s]")
    suite.add_argument("--profile", default="", help="KEY=VALUE,... of dtype, attention, ...")
    suite.add_argument(
        "--against", default="", metavar="PROFILE", help="KEY=VALUE,...: the same set again, paired"
    )
    suite.add_argument("--prompts", type=int, default=100, help="without files [%(default)s]")
    suite.add_argument("--conditioned", type=int, default=8, help="of each other task [8]")
    suite.add_argument("--sizes", default="", help="WxHxF,... instead of the set's own")
    suite.add_argument("--url", default="", help="a running server that must make equal clips")
    suite.add_argument("--served", type=int, default=12, help="prompts for it [%(default)s]")


def run(args: argparse.Namespace) -> int:
    """Measure one file or one checkpoint.

    Returns:
        0, or 1 when a caption is given and the clip is not what it asks for, or when a server's
        clip is not the library's.

    Raises:
        InvalidRequestError: a file that is not readable, or a caption without a coloured shape.
    """
    if (args.file is None) == (args.checkpoint is None):
        raise InvalidRequestError("file, --checkpoint: give one of the two")
    return _run_suite(args) if args.file is None else _run_file(args)


def _run_suite(args: argparse.Namespace) -> int:
    # Its imports, torch's libraries among them, take seconds that a file should not pay for.
    from build_engines.evaluation.library import Profile
    from build_engines.evaluation.suite import Suite, run_suite
    from build_engines.train_tiny.documents import parse_sizes

    if args.points < MIN_STEPS:
        raise InvalidRequestError(
            f"--points: {args.points} is not legal; legal: {MIN_STEPS} or more"
        )
    profile = Profile(points=args.points)
    suite = Suite(
        checkpoint=args.checkpoint,
        output=args.output,
        profile=profile.varied(args.profile) if args.profile else profile,
        against=args.against,
        url=args.url,
        served=args.served,
        prompts=args.prompts,
        conditioned=args.conditioned,
        sizes=parse_sizes(args.sizes),
    )
    return 0 if run_suite(suite, say=lambda line: print(line, flush=True)) else 1


def _run_file(args: argparse.Namespace) -> int:
    # FFmpeg's libraries, which a machine that only evaluates a checkpoint may lack.
    from build_engines.evaluation.clip_files import read_clip, read_picture

    request = None
    if args.caption is not None:
        try:
            request = parse_caption(args.caption)
        except ValueError as error:
            raise InvalidRequestError(f"--caption: {error}") from error
        if unread := unread_words(args.caption):
            raise InvalidRequestError(
                f"--caption: nothing would be judged of {', '.join(map(repr, unread))}; "
                "legal: words as in 'a small red circle bounces to the left on a blue ground'"
            )
    frames, wave = read_clip(args.file)
    facts = measure_clip(frames, wave)
    verdicts = judge(facts, request) if request else {}
    extra: dict[str, object] = {}
    for name, picture, frame in (("first", args.first, frames[0]), ("last", args.last, frames[-1])):
        if picture is not None:
            extra[f"{name}_psnr_db"] = _keyframe_psnr(f"--{name}", picture, frame)
    if args.original is not None:
        extra |= _fidelity(args.original, frames, wave)
    if args.reference is not None:
        extra["reference"] = reference_look(facts, read_picture(args.reference))
    if args.json:
        print(json.dumps({**facts.as_json(), **extra, "verdicts": verdicts}, indent=2))
    else:
        print("\n".join(_lines(facts, extra, verdicts)))
    return 0 if all(verdicts.values()) else 1


def _keyframe_psnr(option: str, path: Path, frame: Frames) -> float:
    from build_engines.evaluation.clip_files import read_picture

    picture = read_picture(path)
    if picture.shape != frame.shape:
        raise InvalidRequestError(
            f"{option}: {picture.shape[1]}x{picture.shape[0]} is not legal; legal: the size of the "
            f"clip, {frame.shape[1]}x{frame.shape[0]}"
        )
    return psnr(frame, picture)


def _fidelity(path: Path, frames: Frames, wave: Wave) -> dict[str, object]:
    """Decibels between a clip and the one that it reproduces."""
    from build_engines.evaluation.clip_files import read_clip

    original, sound = read_clip(path)
    try:
        return {"psnr_db": psnr(frames, original), "snr_db": snr(wave, sound)}
    except ValueError as error:
        raise InvalidRequestError(f"--original: {path}: {error}") from error


def _lines(facts: ClipFacts, extra: dict[str, object], verdicts: dict[str, bool]) -> list[str]:
    lines = [f"ground: {facts.ground}; clicks: {len(facts.clicks)}"]
    for seen in facts.objects:
        pitch = "silent" if seen.pitch_hz is None else f"{seen.pitch_hz:.1f} Hz"
        lines.append(
            f"{seen.size} {seen.colour} {seen.shape} (radius {seen.radius:.1f}): {seen.motion} "
            f"{seen.direction}; {pitch}"
        )
        if seen.pan_error is not None:
            correlation = "" if seen.pan_correlation is None else f", r {seen.pan_correlation:.3f}"
            lines.append(f"  pan: {seen.pan_error:.3f} widths off{correlation}")
        offsets = [abs(offset) for offset in seen.click_offsets if offset is not None]
        offsets = [offset for offset in offsets if offset <= _CLICK_WITHIN_S]
        if seen.bounces:
            median = f", median {1000 * float(np.median(offsets)):.1f} ms off" if offsets else ""
            lines.append(f"  {len(seen.bounces)} bounces, {len(offsets)} with a click{median}")
    lines += [f"{name}: {value}" for name, value in extra.items()]
    lines += [f"{'right' if right else 'WRONG'}: {name}" for name, right in verdicts.items()]
    return lines
