"""`python -m build_engines.evaluation`: `h3 eval` where the package is not installed."""

import argparse
import sys

from build_engines.evaluation import command
from minimax_h3.core.errors import H3Error


def main() -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="h3 eval", description=command.SUMMARY)
    command.add_arguments(parser)
    try:
        return command.run(parser.parse_args())
    except H3Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
