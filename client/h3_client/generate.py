"""`h3 generate`: one request to a running server, with progress, into MP4 files."""

import argparse
import json
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from h3_client.client import GenerationResult, H3Client
from h3_client.connection import add_connection_arguments, connect
from h3_client.errors import INTERNAL, INVALID_ARGUMENT, H3ClientError
from h3_client.media import SERVER_FILE
from h3_client.output_files import check_writable, clip_paths, write_atomically
from h3_client.progress import DONE, JobProgress, ProgressView, progress_view

SUMMARY = "make a clip on a running server"

POLL_S = 0.25
CANCEL_WAIT_S = 30.0  # a step of a full-size job can take this long
INTERRUPTED = 130

_FIELD_OPTIONS = (
    ("--task", str, "t2va, fl2va or ref2va; inferred when absent"),
    ("--width", int, "canvas width in pixels, a multiple of 32, with --height"),
    ("--height", int, "canvas height in pixels, a multiple of 32, with --width"),
    ("--aspect-ratio", str, "W:H on the checkpoint's short edge, instead of a size"),
    ("--duration", float, "seconds, 4 to 15"),
    ("--num-frames", int, "frames instead of seconds; aligned up to 17 n + 5"),
    ("--steps", int, "sigma points; one forward fewer is run"),
    ("--seed", int, "noise seed of the first clip"),
    ("--num-outputs", int, "clips; clip i uses seed + i"),
    ("--audio-mode", str, "lock_source: the one sound among --ref becomes the clip's sound"),
)
_FIELD_NAMES = {"steps": "num_inference_steps"}
_FILE_FLAGS = {
    "keyframes": "--first and --last",
    "frame_indices": "--first and --last, which say where the pictures go",
    "references": "--ref",
    "start_time_seconds": "--start",
}
# Arguments of `H3Client.generate` that are no request fields, and the field behind one of them.
_NOT_OPTIONS = ("frames", "audio", "return_frames", "request_id", "timeout_s")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("prompt", help="what to make, used verbatim")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("out.mp4"), help="file to write [out.mp4]"
    )
    for flag, kind, text in _FIELD_OPTIONS:
        parser.add_argument(flag, type=kind, help=text)
    files = parser.add_argument_group(
        "files", f"a path, or {SERVER_FILE}NAME for a file below the server's media root"
    )
    files.add_argument("--first", metavar="FILE", type=_media, help="picture to begin with")
    files.add_argument("--last", metavar="FILE", type=_media, help="picture to end on")
    files.add_argument(
        "--ref",
        metavar="FILE",
        type=_media,
        action="append",
        help="reference picture, video or sound; repeated in the order the prompt counts them",
    )
    files.add_argument(
        "--start",
        metavar="SECONDS",
        type=float,
        action="append",
        help="seconds to skip, one for each reference video",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=JSON",
        help="any other request field, for example --option video_crf=23; may be repeated",
    )
    add_connection_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the full metadata as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(args: argparse.Namespace) -> int:
    """Generate, write the files, print where they are."""
    fields = request_fields(args)
    paths = clip_paths(args.output, _clip_count(fields))
    check_writable(paths)
    alias = uuid.uuid4().hex
    view = progress_view(sys.stderr, quiet=args.quiet)
    finished: Future[GenerationResult] = Future()
    with connect(args) as client, _ctrl_c() as interrupted:
        try:
            _start(finished, client, fields, alias)
            _watch(finished, client, alias, view, interrupted)
        finally:
            view.close()
        if interrupted.is_set():
            return _cancel(finished, client, alias)
    result = finished.result()
    if len(result.mp4) != len(paths):
        message = f"the server sent {len(result.mp4)} clips; asked for {len(paths)}"
        raise H3ClientError(INTERNAL, message)
    for path, content in zip(paths, result.mp4, strict=True):
        write_atomically(path, content)
    print(_json_report(result, paths) if args.json else _report(result, paths))
    return 0


def request_fields(args: argparse.Namespace) -> dict[str, Any]:
    """The request fields that the options name.

    Raises:
        H3ClientError: an `--option` is not KEY=JSON, or names a field twice.
    """
    fields: dict[str, Any] = {"prompt": args.prompt}
    given_by = {"prompt": "the prompt", **_FILE_FLAGS}
    for flag, _, _ in _FIELD_OPTIONS:
        name = flag.removeprefix("--").replace("-", "_")
        value = getattr(args, name)
        if value is not None:
            fields[_FIELD_NAMES.get(name, name)] = value
            given_by[_FIELD_NAMES.get(name, name)] = flag
    fields |= _media_fields(args)
    for text in args.option:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise H3ClientError(INVALID_ARGUMENT, f"--option {text}: legal: KEY=JSON")
        if name in fields:
            message = f"--option {text}: {name} is given already, by {given_by[name]}; legal: once"
            raise H3ClientError(INVALID_ARGUMENT, message)
        if name in _NOT_OPTIONS:
            message = f"--option {text}: {name} is not for this command, which writes MP4 files"
            raise H3ClientError(INVALID_ARGUMENT, message)
        try:
            fields[name] = json.loads(value)
        except ValueError as error:
            message = f"--option {text}: not JSON ({error}); a text needs quotes: {name}='\"...\"'"
            raise H3ClientError(INVALID_ARGUMENT, message) from error
        if fields[name] is None:
            message = f"--option {text}: null is no value; legal: leave the option out"
            raise H3ClientError(INVALID_ARGUMENT, message)
        given_by[name] = "another --option"
    return fields


def _media(word: str) -> Path | str:
    """What a file option means: text for a file at the server, else a path here."""
    return word if word.startswith(SERVER_FILE) else Path(word)


def _media_fields(args: argparse.Namespace) -> dict[str, Any]:
    """The fields behind the options for files."""
    fields: dict[str, Any] = {}
    keyframes = {index: file for index, file in ((0, args.first), (-1, args.last)) if file}
    if keyframes:
        fields |= {"keyframes": list(keyframes.values()), "frame_indices": list(keyframes)}
    if args.ref:
        fields["references"] = args.ref
    if args.start:
        fields["start_time_seconds"] = args.start
    return fields


def _clip_count(fields: dict[str, Any]) -> int:
    """Clips that the request asks for; an illegal number is left for the server to refuse."""
    count = fields.get("num_outputs")
    return count if isinstance(count, int) and count > 1 else 1


def _start(
    finished: Future[GenerationResult], client: H3Client, fields: dict[str, Any], alias: str
) -> None:
    """Send the request from a thread of its own, so that this one can watch and be interrupted."""

    def work() -> None:
        try:
            finished.set_result(client.generate(request_id=alias, **fields))
        except BaseException as error:  # noqa: BLE001  # the watching thread raises it
            finished.set_exception(error)

    threading.Thread(target=work, name="generate", daemon=True).start()


@contextmanager
def _ctrl_c() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets; the second one leaves at once.

    A KeyboardInterrupt surfaces wherever the interpreter happens to be, and is lost in a callback.
    """
    interrupted = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        del number, frame
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    previous = signal.signal(signal.SIGINT, on_signal)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, previous)


def _watch(
    finished: Future[GenerationResult],
    client: H3Client,
    alias: str,
    view: ProgressView,
    interrupted: threading.Event,
) -> None:
    """Show progress until the request is answered. Lost progress never ends a request."""
    while not interrupted.is_set() and not _is_done(finished, POLL_S):
        try:
            progress = JobProgress.of(client.job(alias))
        except H3ClientError:
            continue
        if progress is not None:
            view.show(progress)
    if finished.done() and finished.exception() is None:
        view.show(DONE)


def _is_done(finished: Future[GenerationResult], timeout_s: float) -> bool:
    return bool(wait([finished], timeout_s).done)


def _cancel(finished: Future[GenerationResult], client: H3Client, alias: str) -> int:
    """Stop the job on the server after Ctrl-C; a second Ctrl-C leaves at once."""
    print("cancelling the job on the server ...", file=sys.stderr, flush=True)
    deadline = time.monotonic() + CANCEL_WAIT_S
    asked: dict[str, object] = {}
    try:
        while not _is_done(finished, POLL_S) and time.monotonic() < deadline:
            if not asked.get("cancelled"):  # the request may still be on its way to `jobs`
                asked = client.cancel(alias)
    except H3ClientError as error:
        print(f"could not cancel: {error.status}: {error}", file=sys.stderr)
        return INTERRUPTED
    if not finished.done():
        print(f"cancel asked for; the job ends at its next step (alias {alias})", file=sys.stderr)
    elif finished.exception() is None:
        print("the job had already finished; nothing was written", file=sys.stderr)
    else:
        print(f"stopped: {finished.exception()}", file=sys.stderr)
    return INTERRUPTED


def _report(result: GenerationResult, paths: list[Path]) -> str:
    told = result.metadata
    media_s = _media_seconds(result)
    lines = [f"{path}  {len(clip):,} bytes" for path, clip in zip(paths, result.mp4, strict=True)]
    lines.append(
        f"{told.get('width')}x{told.get('height')}, {told.get('num_frames')} frames, "
        f"{told.get('media_s')} s, {told.get('num_forwards')} forwards, seed {told.get('seed')}"
    )
    speed = f", rtf {result.seconds / media_s:.3g}" if media_s else ""
    lines.append(f"{result.seconds:.2f} s at the client{speed}, job {told.get('job_id')}")
    return "\n".join(lines)


def _json_report(result: GenerationResult, paths: list[Path]) -> str:
    media_s = _media_seconds(result)
    report = {
        "files": [str(path.resolve()) for path in paths],
        "client_s": round(result.seconds, 6),
        "client_rtf": round(result.seconds / media_s, 6) if media_s else None,
        "request_id": result.request_id,
        "metadata": result.metadata,
    }
    return json.dumps(report, indent=2)


def _media_seconds(result: GenerationResult) -> float | None:
    """Seconds of all clips together, what the real-time factor is counted against."""
    media_s = result.metadata.get("media_s")
    return media_s * len(result.mp4) if isinstance(media_s, int | float) and media_s > 0 else None
