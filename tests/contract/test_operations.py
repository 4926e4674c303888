"""docs/operations.md against the code: every metric, every error, every flag."""

import argparse
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

from fakes import pb_utils

import minimax_h3
from minimax_h3.core.config import RANGES, StageConfig
from minimax_h3.core.contracts import DENOISER_INSTANCES
from minimax_h3.core.errors import H3Error
from minimax_h3.core.metrics import METRICS
from minimax_h3.serve import command, service, supervisor
from minimax_h3.serve.progress_watch import STEP_FACTOR
from minimax_h3.serve.settings import ServeSettings

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def table(title: str) -> list[list[str]]:
    rows = [line for line in section(title).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[1:]]


def import_unless_for_gpu(module: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != "triton":  # the language of the GPU kernels
            raise


def error_classes() -> Iterator[type[H3Error]]:
    pb_utils.install()
    for module in pkgutil.walk_packages(minimax_h3.__path__, "minimax_h3."):
        import_unless_for_gpu(module.name)

    def below(kind: type[H3Error]) -> Iterator[type[H3Error]]:
        yield kind
        for child in kind.__subclasses__():
            yield from below(child)

    return (kind for kind in below(H3Error) if kind.__module__.startswith("minimax_h3."))


def test_every_metric() -> None:
    assert table("Metrics") == [
        [
            f"`{spec.name}`",
            spec.kind,
            ", ".join(f"`{label}`" for label in spec.labels) or "-",
            spec.meaning,
        ]
        for spec in METRICS.values()
    ]


def test_every_error_kind() -> None:
    expected = {
        f"`{kind.kind}`": [
            "-" if kind.__module__.startswith("minimax_h3.serve") else kind.status,
            (kind.__doc__ or "").splitlines()[0],
        ]
        for kind in error_classes()
    }
    assert {row[0]: row[1:3] for row in table("Errors")} == expected


def test_flags_exist() -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    known = set(re.findall(r"--[a-z-]+", parser.format_help()))
    named = set(re.findall(r"--[a-z][a-z-]+", PAGE)) - {"--profile", "--build", "--shm-size"}
    assert named <= known
    assert set(re.findall(r"`(stream_jobs|client_jobs|results_bytes)`", PAGE)) <= set(
        StageConfig().parameters()
    )


def test_figures_are_the_defaults() -> None:
    settings, stage = ServeSettings(), StageConfig()
    limits = {row[0]: row[1] for row in table("Limits")}
    assert limits["jobs that share the DiT"] == str(stage.running_jobs)
    assert limits["jobs that run or wait for a turn"] == str(stage.max_jobs)
    assert limits["streams that wait for a place"] == str(stage.stream_jobs)
    assert limits["unfinished jobs of one named client"] == str(stage.client_jobs)
    assert limits["rows of one forward"] == f"up to {stage.max_packed_rows:,}"
    low, high = RANGES["max_packed_rows"]
    assert f"`--max-packed-rows` ({low} to {high:,})" in section("Limits")
    hang = f"{settings.hang_timeout_s:g} s, or {STEP_FACTOR:g} of its own steps"
    assert limits["silence of a job before a model may count as hung"] == hang
    assert f"{settings.silence_timeout_s:g} s" in limits.values()
    restarts = f"{service.MAX_RESTARTS} in {service.RESTARTS_S / 60:g} minutes"
    assert limits["restarts of the whole server"].startswith(restarts)
    assert f"seconds ({settings.grace_s:g})" in section("Start and stop")
    assert f"{settings.exit_timeout_s} s later SIGKILL" in " ".join(
        section("Start and stop").split()
    )
    healing = " ".join(section("How it heals").split())
    assert f"two probes of {supervisor.PROBE_TIMEOUT_S:g} s" in healing
    assert f"probed every {supervisor.PROBE_EVERY_S:g} s" in healing
    assert f"`denoiser` has {DENOISER_INSTANCES} processes" in healing


def test_files_and_ports_exist() -> None:
    for path in re.findall(r"`((?:deploy|docs)/[\w./-]+)`", PAGE):
        assert (ROOT / path).is_file(), path
    assert f":{ServeSettings().metrics_port}/metrics" in PAGE
