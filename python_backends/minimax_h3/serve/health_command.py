"""`h3 health`: asks every model of a running server, by inference, whether it answers."""

import argparse

from minimax_h3.serve.progress_watch import JobView, busy_models
from minimax_h3.serve.server_api import AddressError, ServerApi, ServerApiError
from minimax_h3.serve.settings import ServeSettings
from minimax_h3.serve.supervisor import JOBS, UNFINISHED

SUMMARY = "ask every model of a running server whether it answers"
DEFAULT_TIMEOUT_S = 5.0
FILES = "preprocess"  # the model that reads files first


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    settings = ServeSettings()
    address = f"{settings.url_host}:{settings.http_port}"
    parser.add_argument(
        "--url",
        default=address,
        metavar="HOST:PORT",
        help="HTTP address, where h3 generate and h3 jobs take the gRPC one; default %(default)s",
    )
    parser.add_argument(
        "--timeout", type=float, default=DEFAULT_TIMEOUT_S, metavar="SECONDS", help="for each model"
    )


def run(options: argparse.Namespace) -> int:
    """Print a line a model; 1 when one does not answer. A model at work is not disturbed."""
    api = ServerApi(options.url.removeprefix("http://").rstrip("/"))
    try:
        api.check_address(options.timeout)
        busy, models = _busy(api, options.timeout), api.models(options.timeout)
    except AddressError as error:
        print(error)
        return 1
    except ServerApiError as error:
        print(f"{JOBS}: {error}")
        return 1
    print(f"{JOBS}: answers")
    if media_root := _media_root(api, models, options.timeout):
        print(f"requests may name files below {media_root}")
    silent = False
    for model in sorted(models - {JOBS}):
        answers = model in busy or api.probe(model, options.timeout)
        print(f"{model}: {'at work' if model in busy else 'answers' if answers else 'SILENT'}")
        silent = silent or not answers
    return int(silent)


def _media_root(api: ServerApi, models: frozenset[str], timeout_s: float) -> str:
    """The folder that requests may name files of; empty where there is none, or nobody says so."""
    try:
        return api.parameter(FILES, "media_root", timeout_s) if FILES in models else ""
    except ServerApiError:  # Triton tells nothing of a model that it is loading
        return ""


def _busy(api: ServerApi, timeout_s: float) -> frozenset[str]:
    """Models that a job waits for; asking is itself the proof that `jobs` answers."""
    listed = api.jobs({"op": "list"}, timeout_s).get("jobs")
    entries = listed if isinstance(listed, list) else []
    return busy_models(JobView.of(entry) for entry in entries if entry["state"] in UNFINISHED)
