"""`h3 check FILE`: is this MP4 what was asked for?"""

import argparse
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path

from minimax_h3.core.errors import H3Error, InvalidRequestError
from minimax_h3.media.check import (
    BT709_LIMITED,
    MIN_KEYFRAME_PSNR_DB,
    Expectation,
    Report,
    check_facts,
    psnr_db,
)
from minimax_h3.media.kinds import identify
from minimax_h3.media.pictures import Pixels, prepare_keyframe, read_picture
from minimax_h3.media.probe import AudioFacts, MediaFacts, Source, VideoFacts, probe

FAILED = 1
SUMMARY = "check an MP4 of this product: streams, lengths, colours, picture and sound"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("file", type=Path, help="the MP4")
    parser.add_argument("--width", type=int, help="expected width in pixels")
    parser.add_argument("--height", type=int, help="expected height in pixels")
    parser.add_argument("--frames", type=int, help="expected number of frames")
    parser.add_argument("--metadata", type=Path, help="METADATA of the answer, as a JSON file")
    parser.add_argument("--first", type=Path, metavar="PICTURE", help="the first keyframe")
    parser.add_argument("--last", type=Path, metavar="PICTURE", help="the last keyframe")
    parser.add_argument(
        "--min-keyframe-psnr",
        type=float,
        default=MIN_KEYFRAME_PSNR_DB,
        metavar="DB",
        help="how near the clip must come to its keyframes [%(default)s]",
    )
    parser.add_argument("--repeat", type=Path, help="a second MP4 of the same request and seed")
    parser.add_argument("--cached", type=Path, help="an MP4 of the same request through caches")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")


def run(args: argparse.Namespace) -> int:
    """Check one file and print every verdict.

    Returns:
        0 when no check failed, else 1.
    """
    try:
        return _check(args)
    except H3Error as error:
        print(f"h3 check: {error}", file=sys.stderr)
        return FAILED


def _check(args: argparse.Namespace) -> int:
    """`run`.

    Raises:
        InvalidRequestError: the metadata file is not a JSON object, or a keyframe no picture.
    """
    facts = probe(args.file)
    metadata = None if args.metadata is None else _read_metadata(args.metadata)
    canvas = _canvas(args, metadata or {}, facts.video)
    expectation = Expectation(
        width=args.width,
        height=args.height,
        num_frames=args.frames,
        first_keyframe=_keyframe(args.first, canvas, crop=False),
        last_keyframe=_keyframe(args.last, canvas, crop=args.first is not None),
        min_keyframe_psnr_db=args.min_keyframe_psnr,
        metadata=metadata,
        repeat=args.repeat,
        cached=args.cached,
    )
    report = check_facts(facts, expectation)
    nearness = _keyframe_psnr(report.facts, expectation)
    if args.json:
        print(json.dumps({**_as_json(report), "keyframe_psnr_db": nearness}, indent=2))
    else:
        print(f"{args.file}: {describe(report.facts)}")
        if facts.problem:
            return FAILED
        print(report)
        for name, psnr in nearness.items():
            print(f"the {name} frame is {psnr:.1f} dB from its keyframe")
        print("all checks passed" if report.passed else f"failed: {', '.join(report.failed)}")
    return 0 if report.passed else FAILED


def summary(source: Source) -> str:
    """What is in a media file, in three lines; a file that does not open is described too."""
    return describe(probe(source))


def describe(facts: MediaFacts) -> str:
    """`summary` of facts at hand."""
    if facts.problem:
        return f"does not open: {facts.problem}"
    layout = "moov first" if facts.boxes.moov_first else "moov not first"
    lines = [
        f"{facts.container}, {facts.size_bytes / 1e6:.3f} MB, {_seconds(facts.duration_s)}, "
        f"{facts.bit_rate / 1e3:.0f} kb/s, {layout}"
    ]
    lines += [_video_line(facts.video)] if facts.video else []
    lines += [_audio_line(facts.audio)] if facts.audio else []
    lines += [f"  decode: {facts.decode_problem}"] if facts.decode_problem else []
    return "\n".join(lines)


def _video_line(video: VideoFacts) -> str:
    colour = "BT.709 limited" if video.colour == BT709_LIMITED else f"colour tags {video.colour}"
    return (
        f"  video: {video.codec} ({video.profile}) {video.pixel_format}, "
        f"{video.width}x{video.height}, {video.rate} fps, {len(video.frame_hashes)} frames, "
        f"{_seconds(video.duration_s)}, {video.bit_rate / 1e3:.0f} kb/s, {colour}"
    )


def _audio_line(audio: AudioFacts) -> str:
    level = f"{20 * math.log10(audio.rms):.1f} dB" if audio.rms > 0 else "silent"
    return (
        f"  audio: {audio.codec}, {audio.sample_rate_hz} Hz, {audio.channels} channels, "
        f"{audio.samples} samples, {_seconds(audio.duration_s)}, {audio.bit_rate / 1e3:.0f} kb/s, "
        f"rms {level}, peak {audio.peak:.3f}"
    )


def _seconds(value: float | None) -> str:
    return "unknown length" if value is None else f"{value:.3f} s"


def _as_json(report: Report) -> dict[str, object]:
    video, audio = report.facts.video, report.facts.audio
    return {
        "passed": report.passed,
        "checks": [
            {
                "number": result.number,
                "name": result.name,
                "status": result.status.value,
                "detail": result.detail,
            }
            for result in report.results
        ],
        "summary": describe(report.facts).splitlines(),
        "num_frames": len(video.frame_hashes) if video else 0,
        "frame_hashes": video.frame_hashes if video else [],
        "sample_hash": audio.sample_hash if audio else "",
    }


def _canvas(
    args: argparse.Namespace, metadata: Mapping[str, object], video: VideoFacts | None
) -> tuple[int, int] | None:
    """Width and height that keyframes were prepared for: asked, answered, or the file's own."""
    sides = [
        next((side for side in found if isinstance(side, int)), None)
        for found in (
            (args.width, metadata.get("width"), video and video.width),
            (args.height, metadata.get("height"), video and video.height),
        )
    ]
    width, height = sides
    return (width, height) if width and height else None


def _keyframe(path: Path | None, canvas: tuple[int, int] | None, *, crop: bool) -> Pixels | None:
    """A keyframe as the server prepared it: the first one stretched, a second one cropped.

    Without a canvas, which only a file without a picture leaves open, there is nothing to compare.
    """
    if path is None:
        return None
    encoded = path.read_bytes()
    picture = read_picture(encoded, identify(encoded, str(path)).name, str(path))
    return prepare_keyframe(picture, *canvas, crop=crop) if canvas else None


def _keyframe_psnr(facts: MediaFacts, wanted: Expectation) -> dict[str, float]:
    """How near the first and last frame came to their keyframes, in dB, where both are there."""
    video = facts.video
    pairs = {
        "first": (video.first if video else None, wanted.first_keyframe),
        "last": (video.last if video else None, wanted.last_keyframe),
    }
    return {
        name: round(psnr_db(frame, keyframe), 2)
        for name, (frame, keyframe) in pairs.items()
        if frame is not None and keyframe is not None and frame.shape == keyframe.shape
    }


def _read_metadata(path: Path) -> dict[str, object]:
    try:
        metadata = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"--metadata: {path} is not readable JSON ({error})") from error
    if not isinstance(metadata, dict):
        raise InvalidRequestError(f"--metadata: {path} does not hold a JSON object")
    return metadata
