"""`h3 load`: offer a running server more or less than it can do, and see what it answers."""

import argparse
import json
import uuid
from pathlib import Path

from h3_client.client import DEFAULT_URLS, H3Client
from h3_client.connection import add_connection_arguments, connect
from h3_client.errors import INVALID_ARGUMENT, H3ClientError
from h3_client.load import Send, report, run_load
from h3_client.stream import ClipStream

SUMMARY = "open-loop load on a running server, with a JSON report"
PROMPT = "a red ball bounces on a wooden floor"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--rate", type=float, default=1.0, help="requests a second [1]")
    parser.add_argument("--duration", type=float, default=30.0, help="seconds of sending [30]")
    parser.add_argument("--model", choices=("ensemble", "stream"), default="ensemble")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--height", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10, help="sigma points [10]")
    parser.add_argument("--seed", type=int, default=0, help="of the gaps and of the clips")
    parser.add_argument("--output", type=Path, metavar="FILE", help="also write the report there")
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Send, wait, report; 1 when a request failed other than by being turned away."""
    if not args.rate > 0 or not args.duration > 0:
        raise H3ClientError(INVALID_ARGUMENT, "--rate, --duration: legal: above 0")
    if args.model == "stream" and args.http:
        raise H3ClientError(INVALID_ARGUMENT, "--http with --model stream: legal: gRPC")
    with connect(args) as client:
        client.ping()
        outcomes = run_load(_sender(args, client), args.rate, args.duration, args.seed)
    told = {"model": args.model, **report(outcomes, args.rate, args.duration)}
    text = json.dumps(told, indent=2)
    if args.output is not None:
        args.output.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 1 if told["failed"] else 0


def _sender(args: argparse.Namespace, client: H3Client) -> Send:
    fields = {"width": args.width, "height": args.height, "num_inference_steps": args.steps}
    url = args.url or DEFAULT_URLS["grpc"]

    def unary(index: int) -> float | None:
        client.generate(PROMPT, seed=args.seed + index, request_id=uuid.uuid4().hex, **fields)
        return None

    def streamed(index: int) -> float | None:
        with ClipStream(url, PROMPT, {**fields, "seed": args.seed + index}) as stream:
            for _ in stream:
                pass
            return stream.events_s[0]

    return streamed if args.model == "stream" else unary
