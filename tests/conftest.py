"""Markers from the folder a test lives in, and the fixtures that every folder may use."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # tiny tensors: a second thread costs more than it computes

FOLDER_MARKERS = ("unit", "contract", "server", "gpu", "multigpu")
ROOT = Path(__file__).resolve().parent.parent
WHOLE_SOAK_S = 1800  # the length of `make soak`; a shorter run leaves long matrices out


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak-seconds", type=int, default=120, help="length of the soak tests (make soak: 1800)"
    )


@pytest.fixture(scope="session")
def soak_seconds(request: pytest.FixtureRequest) -> int:
    """How long the soak tests run."""
    return int(request.config.getoption("--soak-seconds"))


@pytest.fixture(scope="session")
def whole_soak(soak_seconds: int) -> bool:
    """Whether there is time for everything."""
    return soak_seconds >= WHOLE_SOAK_S


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    hurried = config.getoption("--soak-seconds") < WHOLE_SOAK_S
    for item in items:
        if item.get_closest_marker("whole_soak"):
            item.add_marker("soak")
            if hurried:
                item.add_marker(pytest.mark.skip(reason="for make soak: it takes long"))
        folder = item.path.relative_to(ROOT / "tests").parts[0]
        if folder in FOLDER_MARKERS:
            item.add_marker(folder)


@pytest.fixture(scope="session")
def tiny_checkpoint(run_folder: Path) -> Path:
    """A tiny random checkpoint in the official layout: the folder that holds FL2VA/ and Ref2VA/."""
    return _tiny(run_folder, "official")


@pytest.fixture(scope="session")
def tiny_diffusers_checkpoint(run_folder: Path) -> Path:
    """The same weights in the diffusers layout."""
    return _tiny(run_folder, "diffusers")


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this run share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own  # noqa: TID251


def _tiny(run_folder: Path, layout: str) -> Path:
    """Written by whichever process asks first; the others wait and read it."""
    folder = run_folder / f"tiny-{layout}"
    with (run_folder / f"tiny-{layout}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            part = run_folder / f"tiny-{layout}.part"
            command = [sys.executable, "-m", "build_engines", "tiny", str(part), "--layout", layout]
            subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
            part.rename(folder)
    return folder
