"""`h3 bench`: the transformer beside the device's ceiling and beside diffusers."""

import argparse
import json
from pathlib import Path

SUMMARY = "time operators, a block, or forwards of the DiT with random weights"
AGAINST = ("diffusers", "compiled")
MODELS = ("released", "released_on_small_canvas", "small")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("what", choices=("operators", "block", "forward", "session", "equality"))
    parser.add_argument("--model", choices=MODELS, default="released")
    parser.add_argument("--frames", type=int, nargs="+", default=[124], help="17 n + 5 each")
    parser.add_argument("--attention", nargs="+", default=["auto"], help="backends; `all` for all")
    parser.add_argument("--row-ops", nargs="+", default=["auto"])
    parser.add_argument("--against", nargs="*", choices=AGAINST, default=[])
    parser.add_argument("--forwards", type=int, default=4)
    parser.add_argument("--layers", type=int, help="fewer blocks than the model has")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", help="the first GPU, or the CPU, if not given")
    parser.add_argument("--dtype", choices=("bf16", "fp32"))
    parser.add_argument("--profile", action="store_true", help="kernels of a block, timed apart")
    parser.add_argument("--commit", help="what the JSON says, where there is no git")
    parser.add_argument("--json", type=Path, help="write everything there")


def run(args: argparse.Namespace) -> int:
    """Measure, print a table, write JSON.

    Returns:
        0, or 1 when a configuration was stopped because its output was wrong or not finite.
    """
    from build_engines.bench.report import lines
    from build_engines.bench.runner import measure  # PyTorch, which `h3 --help` need not wait for

    report = measure(args)
    for line in lines({"environment": report["environment"], args.what: report["results"]}):
        print(line)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return int('"stopped"' in json.dumps(report["results"]))
