"""Markers from the folder a test lives in, and the fixtures that every folder may use."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

torch.set_num_threads(1)  # tiny tensors: a second thread costs more than it computes

# A busy machine is no fault of a property. Each run draws other examples; a long search is
# `pytest --hypothesis-profile=thorough`.
settings.register_profile("suite", deadline=None, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=5000)
settings.load_profile("suite")

FOLDER_MARKERS = ("unit", "contract", "server", "gpu", "multigpu")
ROOT = Path(__file__).resolve().parent.parent
SERVERS = "tests/server/"
WHOLE_SOAK_S = 1800  # the length of `make soak`; a shorter run leaves long matrices out


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak-seconds", type=int, default=60, help="length of the soak tests (make soak: 1800)"
    )


@pytest.fixture(scope="session")
def soak_seconds(request: pytest.FixtureRequest) -> int:
    """How long the soak tests run."""
    return int(request.config.getoption("--soak-seconds"))


@pytest.fixture(scope="session")
def whole_soak(soak_seconds: int) -> bool:
    """Whether there is time for everything."""
    return soak_seconds >= WHOLE_SOAK_S


class ServersTogether(LoadFileScheduling):
    """Tests of a file run in one process, and all files with servers in the same one.

    They share servers, and one after another they leave cores to the tests beside them.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return SERVERS if file.startswith(SERVERS) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    return ServersTogether(config, log)


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
def tiny_checkpoint(request: pytest.FixtureRequest) -> Path:
    """A tiny random checkpoint in the official layout: the folder that holds FL2VA/ and Ref2VA/."""
    return _tiny(request, "official")


@pytest.fixture(scope="session")
def tiny_diffusers_checkpoint(request: pytest.FixtureRequest) -> Path:
    """The same weights in the diffusers layout."""
    return _tiny(request, "diffusers")


@pytest.fixture(scope="session")
def small_canvas_checkpoint(request: pytest.FixtureRequest) -> Path:
    """The same weights, stating a small canvas: a CPU encodes references of it in seconds."""
    return _tiny(request, "official", "small")


def _tiny(request: pytest.FixtureRequest, layout: str, canvas: str = "released") -> Path:
    """A checkpoint, made by the first of all test processes that asks for it."""
    shared: Path = request.getfixturevalue("tmp_path_factory").getbasetemp()
    if hasattr(request.config, "workerinput"):  # a process of pytest-xdist
        shared = shared.parent  # each of them has a folder of its own below the run's
    name = f"tiny-{layout}-{canvas}"
    folder = shared / name
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            made = folder.with_suffix(".part")
            options = ("--layout", layout, "--canvas", canvas)
            command = [sys.executable, "-m", "build_engines", "tiny", str(made), *options]
            subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
            made.rename(folder)
    return folder
