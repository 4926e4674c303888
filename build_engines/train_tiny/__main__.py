"""Command line of the training: `python -m build_engines.train_tiny <command>`."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from build_engines.train_tiny.architecture import new_audio_vae, new_video_vae
from build_engines.train_tiny.audio_learner import AudioLearner
from build_engines.train_tiny.pieces import Learner, Piece, run_piece
from build_engines.train_tiny.vae_files import resume_audio_vae, resume_video_vae
from build_engines.train_tiny.video_learner import VideoLearner
from minimax_h3.core.errors import H3Error


def _video(arguments: argparse.Namespace, device: torch.device) -> Learner:
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


def _audio(arguments: argparse.Namespace, device: torch.device) -> Learner:
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


def _train(make: Callable[[argparse.Namespace, torch.device], Learner]) -> Callable[..., None]:
    def run(arguments: argparse.Namespace) -> None:
        device = torch.device(arguments.device)
        # Trying out algorithms pays for a few large convolutions, not for hundreds of small ones.
        torch.backends.cudnn.benchmark = make is _video
        torch.set_float32_matmul_precision("high")
        piece = Piece(
            seconds=arguments.seconds,
            max_steps=arguments.max_steps,
            peak_rate=arguments.peak_rate,
            warm_up_steps=arguments.warm_up_steps,
            seed=arguments.seed,
        )
        learner = make(arguments, device)
        use_graphs = device.type == "cuda" and not arguments.no_graphs
        run_piece(learner, piece, arguments.folder, use_graphs=use_graphs, say=_say)

    return run


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
        train.add_argument("folder", type=Path, help="gets weights, configuration and curves")
        train.add_argument("--resume", type=Path, help="folder of an earlier piece")
        train.add_argument("--seconds", type=float, default=240.0)
        train.add_argument("--max-steps", type=int, default=1_000_000)
        train.add_argument("--peak-rate", type=float, default=rate)
        train.add_argument("--warm-up-steps", type=int, default=200)
        train.add_argument("--batch", type=int, help="scenes a step")
        train.add_argument("--held-out", type=int, help="clips an evaluation")
        train.add_argument("--seed", type=int, default=0, help="another one for each piece")
        train.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
        train.add_argument("--no-graphs", action="store_true", help="run steps one by one")
        train.set_defaults(run=_train(make))

    measure = commands.add_parser("report", help="figures of trained autoencoders, by the loaders")
    measure.add_argument("checkpoint", type=Path, help="folder with video_vae/ and audio_vae/")
    measure.add_argument("--clips", type=int, default=16, help="held-out clips of each canvas")
    measure.add_argument("--json", type=Path)
    measure.set_defaults(run=_report)

    sample = commands.add_parser("sample", help="write a procedural clip, print its caption")
    sample.add_argument("file", type=Path, help="an MP4")
    sample.add_argument("--seed", type=int, default=0)
    sample.add_argument("--index", type=int, default=0)
    sample.set_defaults(run=_sample)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    arguments = build_parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except (H3Error, FloatingPointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
