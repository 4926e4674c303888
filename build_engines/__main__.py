"""Command line of the offline tools: `python -m build_engines <command>`."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from build_engines.attention_kernels import Toolchain, build
from build_engines.convert import convert_to_diffusers
from build_engines.full_width import Pencil, write_full_width
from build_engines.h3_tiny import assemble
from build_engines.released_configs import released
from build_engines.tiny_checkpoint import PARTITIONS, write_tiny, write_tiny_pair
from build_engines.tiny_configs import SMALL_CANVAS
from build_engines.verify import verify
from minimax_h3.attention.libraries import NATIVE_FOLDER
from minimax_h3.core.errors import ConfigError, H3Error
from minimax_h3.dit.dummy import RELEASED

LAYOUTS = (OFFICIAL, DIFFUSERS) = ("official", "diffusers")
BOTH = "both"
CANVASES = {"released": None, "small": SMALL_CANVAS}


def _tiny(arguments: argparse.Namespace) -> None:
    if arguments.layout == DIFFUSERS and CANVASES[arguments.canvas]:
        raise ConfigError(
            f"canvas: {arguments.canvas!r} is not legal with layout {DIFFUSERS!r}, which has no "
            "place for it; legal: 'released'"
        )
    if arguments.layout == OFFICIAL:
        root = _write_official(arguments.folder, arguments)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            source = _write_official(Path(scratch), arguments)
            root = convert_to_diffusers(source, arguments.folder)
    print(f"wrote {root}")


def _write_official(folder: Path, arguments: argparse.Namespace) -> Path:
    if arguments.partition == BOTH:
        return write_tiny_pair(folder, arguments.seed, CANVASES[arguments.canvas])
    return write_tiny(folder, arguments.seed, arguments.partition, CANVASES[arguments.canvas])


def _full_width(arguments: argparse.Namespace) -> None:
    if not 1 <= arguments.blocks <= RELEASED.num_layers:
        legal = f"1..{RELEASED.num_layers}"
        raise ConfigError(f"blocks: {arguments.blocks} is not legal; legal: {legal}")
    root = write_full_width(
        arguments.folder,
        released(arguments.blocks, whole=arguments.whole),
        Pencil(arguments.seed, arguments.device, arguments.hollow),
        partition=arguments.partition,
        say=lambda line: print(line, flush=True),
    )
    print(f"wrote {root}")


def _convert(arguments: argparse.Namespace) -> None:
    print(f"wrote {convert_to_diffusers(arguments.source, arguments.target)}")


def _verify(arguments: argparse.Namespace) -> None:
    for line in verify(arguments.folder, arguments.task_type):
        print(line, flush=True)


def _kernels(arguments: argparse.Namespace) -> None:
    toolchain = Toolchain.find(arguments.nvcc, arguments.flashinfer)
    print(f"compiling with {toolchain.nvcc}; a minute or two", flush=True)
    for line in build(toolchain, arguments.folder, arguments.jobs):
        print(line, flush=True)


def _h3_tiny(arguments: argparse.Namespace) -> None:
    print(f"wrote {assemble(arguments.parts, arguments.folder, arguments.reports)}")


def build_parser() -> argparse.ArgumentParser:
    """The parser with all commands."""
    parser = argparse.ArgumentParser(prog="build_engines", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")

    tiny = commands.add_parser("tiny", help="write a tiny random checkpoint, in seconds")
    tiny.add_argument("folder", type=Path)
    tiny.add_argument("--seed", type=int, default=0)
    tiny.add_argument("--layout", choices=LAYOUTS, default=OFFICIAL)
    tiny.add_argument("--partition", choices=(*PARTITIONS, BOTH), default=BOTH)
    tiny.add_argument(
        "--canvas",
        choices=CANVASES,
        default="released",
        help="small: the checkpoint states a canvas that a CPU draws in seconds [%(default)s]",
    )
    tiny.set_defaults(run=_tiny)

    wide = commands.add_parser(
        "full-width", help="write a random checkpoint of the released widths, shard by shard"
    )
    wide.add_argument("folder", type=Path)
    wide.add_argument("--blocks", type=int, default=5, help="of the DiT; the release has 50")
    wide.add_argument(
        "--whole", action="store_true", help="encoder and autoencoders of the release too"
    )
    wide.add_argument(
        "--hollow", action="store_true", help="headers and holes, for h3 serve --weights dummy"
    )
    wide.add_argument("--partition", choices=PARTITIONS, default=PARTITIONS[0])
    wide.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    wide.add_argument("--seed", type=int, default=0)
    wide.set_defaults(run=_full_width)

    convert = commands.add_parser("convert", help="rewrite a checkpoint in another layout")
    convert.add_argument("source", type=Path)
    convert.add_argument("target", type=Path)
    convert.add_argument("--to", choices=(DIFFUSERS,), required=True)
    convert.set_defaults(run=_convert)

    check = commands.add_parser("verify", help="load every component strictly, print a table")
    check.add_argument("folder", type=Path)
    check.add_argument("--task-type", choices=("fl2va", "ref2va"), default="fl2va")
    check.set_defaults(run=_verify)

    trained = commands.add_parser("h3-tiny", help="put the trained parts together, with their card")
    trained.add_argument("folder", type=Path)
    trained.add_argument("--from", type=Path, required=True, dest="parts", metavar="DIR")
    trained.add_argument("--reports", type=Path, help="JSON reports for the card [DIR]")
    trained.set_defaults(run=_h3_tiny)

    kernels = commands.add_parser("kernels", help="compile the attention kernels for Hopper GPUs")
    kernels.add_argument("--folder", type=Path, default=NATIVE_FOLDER)
    kernels.add_argument("--nvcc", help="the compiler, if it is not on the PATH")
    kernels.add_argument("--flashinfer", type=Path, help="folder of FlashInfer's unzipped wheel")
    kernels.add_argument("--jobs", type=int, default=2)
    kernels.set_defaults(run=_kernels)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    arguments = build_parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except H3Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
