"""`h3`: finds its subcommands among the installed entry points and imports only the one it runs."""

import argparse
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from types import ModuleType

from h3_client.errors import H3ClientError
from minimax_h3.core.errors import H3Error

GROUP = "h3.commands"
DISTRIBUTION = "minimax-h3-triton"
FAILED, USAGE, INTERRUPTED = 1, 2, 130


def main(words: Sequence[str] | None = None) -> int:
    """Run one command line.

    Each command is a module with `SUMMARY`, `add_arguments(parser)` and `run(args) -> int`.

    Args:
        words: arguments without the program's name; those of this process if None.

    Returns:
        Exit code: the command's own, 1 after an error, 2 for wrong usage, 130 after Ctrl-C.
    """
    parser = argparse.ArgumentParser(prog="h3", add_help=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--version", action="store_true")
    parser.add_argument("--debug", action="store_true")
    parser.add_argument("command", nargs="?")
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    args = parser.parse_args(words)
    commands = {point.name: point for point in entry_points(group=GROUP)}
    if args.version:
        print(_version())
        return 0
    if args.help or args.command is None:
        print(_help(commands))
        return 0 if args.help else USAGE
    if args.command not in commands:
        print(f"h3: there is no command {args.command!r}\n\n{_help(commands)}", file=sys.stderr)
        return USAGE
    return _run(commands[args.command], args.rest, debug=args.debug)


def _run(point: EntryPoint, rest: Sequence[str], *, debug: bool) -> int:
    try:
        command: ModuleType = point.load()
        parser = argparse.ArgumentParser(prog=f"h3 {point.name}", description=command.SUMMARY)
        parser.add_argument("--debug", action="store_true", help="show where an error came from")
        command.add_arguments(parser)
        args = parser.parse_args(rest)
        debug = debug or args.debug
        return int(command.run(args))
    except KeyboardInterrupt:
        print(f"h3 {point.name}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001  # the last place that can turn it into words
        if debug:
            traceback.print_exc()
        print(f"h3 {point.name}: {_words(error)}", file=sys.stderr)
        return FAILED


def _words(error: Exception) -> str:
    if isinstance(error, H3ClientError):
        return f"{error.status}: {error}"
    if isinstance(error, OSError | H3Error):
        return str(error)
    return f"{type(error).__name__}: {error} (h3 --debug ... shows where)"


def _help(commands: dict[str, EntryPoint]) -> str:
    lines = ["usage: h3 [--debug] COMMAND ...", "       h3 --version", "", "commands:"]
    lines += [f"  {name:<10} {_summary(point)}" for name, point in sorted(commands.items())]
    lines += ["", "h3 COMMAND --help shows the options of one command."]
    return "\n".join(lines)


def _summary(point: EntryPoint) -> str:
    try:
        return str(point.load().SUMMARY)
    except (ImportError, AttributeError) as error:
        return f"(not available here: {error})"


def _version() -> str:
    try:
        return f"{DISTRIBUTION} {version(DISTRIBUTION)}"
    except PackageNotFoundError:
        return f"{DISTRIBUTION} (not installed)"


if __name__ == "__main__":
    sys.exit(main())
