"""`h3 jobs`: what a server is doing, one job in full, or the end of one."""

import argparse
import json
from pathlib import Path

from h3_client.client import ACTIVE_STATES, GenerationResult
from h3_client.connection import add_connection_arguments, connect
from h3_client.errors import NOT_FOUND, H3ClientError
from h3_client.output_files import check_writable, clip_paths, write_atomically
from h3_client.progress import JobProgress

CANCEL_WAIT_S = 10.0  # a step of a full-size job may take longer; the cancel holds all the same
SUMMARY = "list, look at and cancel the jobs of a running server"

_COLUMNS = "{:<32}  {:<9}  {:<17}  {:>9}  {:>9}  {}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument(
        "action", nargs="?", choices=("list", "get", "cancel", "result"), default="list"
    )
    parser.add_argument("id", nargs="?", help="job id, or the request id it was sent with")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("out.mp4"), help="file of result [out.mp4]"
    )
    add_connection_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the server's answer as JSON")
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Ask `jobs` and print its answer; 1 when the job is unknown or was not there to be stopped."""
    if (args.action == "list") != (args.id is None):
        problem = "takes no ID" if args.id else "needs an ID"
        args.usage_error(f"{args.action} {problem}; legal: list, get ID, cancel ID, result ID")
    with connect(args) as client:
        if args.action == "list":
            jobs = client.jobs()
            print(json.dumps(jobs, indent=2) if args.json else _table(jobs))
            return 0
        if args.action == "result":
            return _write(client.result(args.id), args.output)
        answer = (
            client.job(args.id) if args.action == "get" else client.cancel(args.id, CANCEL_WAIT_S)
        )
    if answer.get("unknown"):
        raise H3ClientError(NOT_FOUND, f"the server knows no job {args.id}")
    if args.json or args.action == "get":
        print(json.dumps(answer, indent=2))
    elif answer.get("cancelled"):
        ended = answer.get("state") not in ACTIVE_STATES
        words = f"is {answer.get('state')}" if ended else "stops at its next step"
        print(f"job {answer.get('job_id')} {words}")
    else:
        print(f"job {answer.get('job_id')} is {answer.get('state')} already")
    return 0 if args.action == "get" or answer.get("cancelled") else 1


def _write(result: GenerationResult, output: Path) -> int:
    paths = clip_paths(output, len(result.mp4))
    check_writable(paths)
    for path, content in zip(paths, result.mp4, strict=True):
        write_atomically(path, content)
        print(f"{path}  {len(content):,} bytes")
    return 0


def _table(jobs: list[dict[str, object]]) -> str:
    if not jobs:
        return "no jobs"
    lines = [_COLUMNS.format("job", "state", "stage", "forwards", "seconds", "request id")]
    lines += [_row(job) for job in jobs]
    return "\n".join(lines)


def _row(job: dict[str, object]) -> str:
    progress = JobProgress.of(job)
    forwards = f"{progress.done}/{progress.total}" if progress and progress.total else ""
    stage = f"position {job['position']}" if job.get("position") else job.get("stage")
    words = (job.get("job_id"), job.get("state"), stage, forwards, job.get("elapsed_s"))
    return _COLUMNS.format(*map(str, words), job.get("alias") or "-")
