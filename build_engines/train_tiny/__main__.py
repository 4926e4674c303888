"""Command line of the training: `python -m build_engines.train_tiny <command>`."""

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from build_engines.train_tiny.architecture import new_audio_vae, new_video_vae
from build_engines.train_tiny.audio_learner import AudioLearner
from build_engines.train_tiny.click_piece import ClickLearner, run_click_piece
from build_engines.train_tiny.pieces import Piece, run_piece
from build_engines.train_tiny.vae_files import resume_audio_vae, resume_video_vae
from build_engines.train_tiny.video_learner import VideoLearner
from minimax_h3.core.errors import H3Error, InvalidRequestError


def _video(arguments: argparse.Namespace, device: torch.device) -> VideoLearner:
    module = new_video_vae(arguments.seed)
    if arguments.resume is not None:
        resume_video_vae(module, arguments.resume)
    return VideoLearner(
        module,
        device,
        seed=arguments.seed,
        batch=arguments.batch or 16,
        held_out=arguments.held_out or 8,
    )


def _audio(arguments: argparse.Namespace, device: torch.device) -> AudioLearner:
    module = new_audio_vae(arguments.seed)
    if arguments.resume is not None:
        resume_audio_vae(module, arguments.resume)
    return AudioLearner(
        module,
        device,
        seed=arguments.seed,
        batch=arguments.batch or 24,
        held_out=arguments.held_out or 24,
    )


def _train(
    make: Callable[[argparse.Namespace, torch.device], VideoLearner | AudioLearner],
) -> Callable[..., None]:
    def run(arguments: argparse.Namespace) -> None:
        device = torch.device(arguments.device)
        # Trying out algorithms pays for a few large convolutions, not for hundreds of small ones.
        torch.backends.cudnn.benchmark = make is _video
        torch.set_float32_matmul_precision("high")
        learner = make(arguments, device)
        if arguments.decoder_only:
            if arguments.resume is None:
                raise InvalidRequestError("--decoder-only: needs --resume, whose latents it keeps")
            learner.keep_latents(arguments.resume)
        use_graphs = device.type == "cuda" and not arguments.no_graphs
        run_piece(learner, _piece(arguments), arguments.folder, use_graphs=use_graphs, say=_say)

    return run


def _train_dit(arguments: argparse.Namespace) -> None:
    # Its imports, the text encoder's library among them, take seconds that the others do not need.
    from build_engines.train_tiny.dit_piece import DitPiece, parse_formats, run_dit_piece

    device = torch.device(arguments.device)
    torch.set_float32_matmul_precision("high")
    settings = DitPiece(
        partition=arguments.partition,
        vaes=arguments.vaes,
        resume=arguments.resume,
        keep_text=arguments.keep_text,
        pool_seconds=arguments.pool_seconds,
        pool=arguments.pool,
        batch=arguments.batch or 32,
        formats=parse_formats(arguments.formats),
        held_out=arguments.held_out or 32,
        bouncing=arguments.bouncing,
        guidance=arguments.guidance,
    )
    use_graphs = device.type == "cuda" and not arguments.no_graphs
    piece = _piece(arguments)
    run_dit_piece(settings, piece, arguments.folder, device, use_graphs=use_graphs, say=_say)


def _train_clicks(arguments: argparse.Namespace) -> None:
    learner = ClickLearner(
        arguments.resume, seed=arguments.seed, held_out=arguments.held_out, say=_say
    )
    piece = Piece(
        seconds=arguments.seconds,
        max_steps=arguments.max_steps,
        peak_rate=arguments.peak_rate,
        warm_up_steps=20,
        seed=arguments.seed,
        log_steps=200,
        evaluate_seconds=15.0,
        averaging=0.02,
    )
    run_click_piece(learner, piece, arguments.folder, say=_say)


def _piece(arguments: argparse.Namespace) -> Piece:
    return Piece(
        seconds=arguments.seconds,
        max_steps=arguments.max_steps,
        peak_rate=arguments.peak_rate,
        warm_up_steps=arguments.warm_up_steps,
        seed=arguments.seed,
    )


def _say(line: str) -> None:
    print(line, flush=True)


def _report(arguments: argparse.Namespace) -> None:
    # Its imports take seconds that a piece of training should not pay for.
    from build_engines.train_tiny.vae_report import report

    figures = report(arguments.checkpoint, arguments.clips)
    text = json.dumps(figures, indent=1)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n")


def _sample(arguments: argparse.Namespace) -> None:
    # It needs FFmpeg's libraries, which a training machine may lack.
    from build_engines.train_tiny.sample import write_sample

    print(write_sample(arguments.file, arguments.seed, arguments.index))


def build_parser() -> argparse.ArgumentParser:
    """The parser with all commands."""
    parser = argparse.ArgumentParser(prog="build_engines.train_tiny", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, make, rate in (("video-vae", _video, 1e-3), ("audio-vae", _audio, 5e-4)):
        train = commands.add_parser(name, help=f"one piece of training of the {name}")
        _add_piece(train, rate)
        train.add_argument(
            "--decoder-only", action="store_true", help="keep the latents as they are"
        )
        train.set_defaults(run=_train(make))
    clicks = commands.add_parser("audio-clicks", help="let an audio-vae's encoder hear clicks")
    clicks.add_argument("folder", type=Path, help="gets weights, configuration and figures")
    clicks.add_argument("--resume", type=Path, required=True, help="an audio-vae without clicks")
    clicks.add_argument(
        "--seconds", type=_AMOUNT, default=90.0, help="of one core, after 40 others"
    )
    clicks.add_argument("--max-steps", type=_COUNT, default=1_000_000)
    clicks.add_argument("--peak-rate", type=_AMOUNT, default=1e-2)
    clicks.add_argument("--held-out", type=_COUNT, default=24, help="clips to measure")
    clicks.add_argument("--seed", type=_INDEX, default=0)
    clicks.set_defaults(run=_train_clicks)
    for name, partition in (("dit", "FL2VA"), ("ref", "Ref2VA")):
        train = commands.add_parser(name, help=f"one piece of training of the {partition} networks")
        _add_piece(train, 1e-3 if name == "dit" else 5e-4)
        train.add_argument("--keep-text", action="store_true", help="train the transformer alone")
        train.add_argument("--vaes", type=Path, required=True, help="trained autoencoders")
        train.add_argument("--pool", type=_COUNT, default=40_000, help="most clips to encode first")
        train.add_argument("--pool-seconds", type=_AMOUNT, default=60.0, help="for encoding them")
        train.add_argument(
            "--formats", default="", help="WxHxF:SHARE,... instead of the usual ones"
        )
        train.add_argument(
            "--bouncing", type=_SHARE, default=0.0, help="least share of documents with bounces"
        )
        train.add_argument(
            "--guidance",
            type=_GUIDANCE,
            default=0.0,
            help="weight of what prompt and references change: a scale of 1 / (1 - weight)",
        )
        train.set_defaults(run=_train_dit, partition=partition)

    measure = commands.add_parser("report", help="figures of trained autoencoders, by the loaders")
    measure.add_argument("checkpoint", type=Path, help="folder with video_vae/ and audio_vae/")
    measure.add_argument("--clips", type=_COUNT, default=16, help="held-out clips of each canvas")
    measure.add_argument("--json", type=Path)
    measure.set_defaults(run=_report)

    sample = commands.add_parser("sample", help="write a procedural clip, print its caption")
    sample.add_argument("file", type=Path, help="an MP4")
    sample.add_argument("--seed", type=_INDEX, default=0)
    sample.add_argument("--index", type=_INDEX, default=0)
    sample.set_defaults(run=_sample)
    return parser


def _number(
    kind: type[int] | type[float], least: float, most: float = math.inf
) -> Callable[[str], float]:
    """An option's type: a finite number within bounds."""
    name = "a whole number" if kind is int else "a number"
    legal = f"{name} from {least:g}" + (f" to {most:g}" if most < math.inf else "")

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and least <= value <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is not legal; legal: {legal}")
        return value

    return read


_COUNT, _INDEX = _number(int, 1), _number(int, 0)
_AMOUNT, _SHARE = _number(float, 0), _number(float, 0, 1)
_GUIDANCE = _number(float, 0, 0.9)  # ten times what a prompt changes; at 1 there is no end


def _check_folders(arguments: argparse.Namespace) -> None:
    """Refuse folders that are none before anything is made.

    Raises:
        InvalidRequestError: it names the option and the path.
    """
    for option, there in (
        ("resume", True),
        ("vaes", True),
        ("checkpoint", True),
        ("folder", False),
    ):
        path: Path | None = getattr(arguments, option, None)
        if path is not None and not path.is_dir() and (there or path.exists()):
            name = option if option in ("checkpoint", "folder") else f"--{option}"
            raise InvalidRequestError(f"{name}: {path} is not legal; legal: a folder")
    device = getattr(arguments, "device", "cpu")
    known = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    if device.partition(":")[0] not in known:
        raise InvalidRequestError(f"--device: {device!r} is not legal; legal: {', '.join(known)}")


def _add_piece(train: argparse.ArgumentParser, rate: float) -> None:
    """Options of every piece of training."""
    train.add_argument("folder", type=Path, help="gets weights, configuration and curves")
    train.add_argument("--resume", type=Path, help="folder of an earlier piece")
    train.add_argument("--seconds", type=_AMOUNT, default=240.0)
    train.add_argument("--max-steps", type=_COUNT, default=1_000_000)
    train.add_argument("--peak-rate", type=_AMOUNT, default=rate)
    train.add_argument("--warm-up-steps", type=_COUNT, default=200)
    train.add_argument("--batch", type=_COUNT, help="scenes a step")
    train.add_argument("--held-out", type=_COUNT, help="clips an evaluation")
    train.add_argument("--seed", type=_INDEX, default=0, help="another one for each piece")
    train.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    train.add_argument("--no-graphs", action="store_true", help="run steps one by one")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    arguments = build_parser().parse_args(argv)
    try:
        _check_folders(arguments)
        arguments.run(arguments)
    except (H3Error, FloatingPointError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
