"""Models without weights stay small: their processes never import torch."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SMALL = ("preprocess", "denoiser", "muxer", "jobs")
HEAVY = ("torch", "transformers", "diffusers")
PROGRAM = """
import runpy, sys
sys.path.insert(0, {tests!r})
from fakes import pb_utils
pb_utils.install()
runpy.run_path({shim!r})
print(*sorted({heavy!r} & set(sys.modules)))
"""


def heavy_imports(shim: Path) -> str:
    program = PROGRAM.format(tests=str(ROOT / "tests"), shim=str(shim), heavy=set(HEAVY))
    command = [sys.executable, "-c", program]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("model", SMALL)
def test_a_model_without_weights_imports_no_torch(model: str) -> None:
    assert heavy_imports(ROOT / "model_repository" / model / "1" / "model.py") == ""


def test_the_check_sees_an_import(tmp_path: Path) -> None:
    shim = tmp_path / "model.py"
    shim.write_text("import minimax_h3.triton_io.adapter\nimport torch\n")
    assert heavy_imports(shim) == "torch"
