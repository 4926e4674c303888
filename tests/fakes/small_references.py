"""Reference pictures at a short edge of 256 pixels instead of 2048, videos at 64 instead of 768.

A CPU encodes them in seconds.

In process, `shrink` patches the rule that a checkpoint without one of its own has. For a real
server, `write_repository` copies the product's repository with the same patch in front of the two
models that prepare files.
"""

import shutil
from pathlib import Path

import pytest

from minimax_h3.core.canvas import CanvasRule
from minimax_h3.weights import manifest

PICTURE_EDGE = 256
VIDEO_EDGE, VIDEO_PIXELS = 64, 64 * 112
PRODUCT = Path(__file__).resolve().parents[2] / "model_repository"
PREPARERS = ("preprocess", "condition_encoder")
RULE = CanvasRule(VIDEO_EDGE, VIDEO_PIXELS, PICTURE_EDGE)
_LINES = f"""\
from minimax_h3.core.canvas import CanvasRule
from minimax_h3.weights import manifest

manifest.RELEASED = {RULE!r}
"""


def shrink(patch: pytest.MonkeyPatch) -> None:
    """Prepare references small, until `patch` is undone."""
    patch.setattr(manifest, "RELEASED", RULE)


def write_repository(folder: Path) -> Path:
    """The product's repository in `folder`, preparing references small."""
    shutil.copytree(
        PRODUCT, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in PREPARERS:
        shim = folder / name / "1" / "model.py"
        shim.write_text(_LINES + shim.read_text())
    return folder
