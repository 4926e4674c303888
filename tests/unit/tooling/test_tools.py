"""Makefile, lock file, CI script: what breaks them without anybody noticing."""

import re
import runpy
import subprocess
import sys
from importlib.metadata import distributions, version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LOCK = ROOT / "requirements" / "lock.txt"


def pins() -> dict[str, str]:
    lines = [line for line in LOCK.read_text().splitlines() if line and line[0] != "#"]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line) for line in lines), lines
    return {canonical(name): pin for name, pin in (line.split("==") for line in lines)}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_lock_names_no_host_and_no_local_version() -> None:
    text = LOCK.read_text()
    assert "://" not in text
    assert "+" not in text
    assert "@" not in text
    assert pins()


OTHER_VENV = Path(sys.prefix).resolve() != ROOT / ".venv"


@pytest.mark.skipif(OTHER_VENV, reason="not the environment that make setup made")
def test_what_is_installed_is_what_is_locked() -> None:
    installed = {
        canonical(found.metadata["Name"]): found.version.partition("+")[0]
        for found in distributions()
    }
    locked = pins()
    wrong = {
        name: (pin, installed.get(name))
        for name, pin in locked.items()
        if installed.get(name) != pin
    }
    assert wrong == {}
    assert version("torch").partition("+")[0] == locked["torch"]
    needed = {"nvidia-pytriton", "tritonclient", "diffusers", "pytest", "ruff", "mypy"}
    assert needed <= set(locked)


def make(*words: str) -> str:
    command = ["make", "--no-print-directory", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def test_make_alone_lists_every_target() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = set(re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split())
    listed = {line.split()[0] for line in make().splitlines()}
    assert listed == phony
    wanted = {"help", "setup", "checkpoint", "demo", "test", "soak", "lint", "render", "bench"}
    assert wanted | {"clean", "lock"} <= listed


def test_lint_checks_each_model_in_its_own_call() -> None:
    assert "for file in model_repository/*/1/model.py" in make("-n", "lint")


def test_ci_runs_lint_and_test() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert script.read_text().rstrip().endswith("exec make lint test")


@pytest.mark.parametrize("name", [".ci/run", "requirements/install.sh", "requirements/lock.sh"])
def test_scripts_parse_and_stop_at_the_first_error(name: str) -> None:
    subprocess.run(["bash", "-n", str(ROOT / name)], check=True)
    assert "set -euo pipefail" in (ROOT / name).read_text()


def test_skips_are_counted_by_reason(tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    junit.write_text(
        "<testsuites><testsuite>"
        "<testcase name='a'><skipped message='no CUDA device'/></testcase>"
        "<testcase name='b'><skipped message='no CUDA device'/></testcase>"
        "<testcase name='c'><skipped message='no ffmpeg'/></testcase><testcase name='d'/>"
        "</testsuite></testsuites>"
    )
    skip_reasons = runpy.run_path(str(ROOT / ".ci" / "skips.py"))["skip_reasons"]
    assert skip_reasons(junit).most_common() == [("no CUDA device", 2), ("no ffmpeg", 1)]


def test_licence_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
