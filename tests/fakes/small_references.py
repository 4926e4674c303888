"""Reference pictures at a short edge of 256 pixels instead of 2048, videos at 64 instead of 768.

A CPU encodes them in seconds.

In process, `shrink` patches the two constants. For a real server, `write_repository` copies the
product's repository with the same patch in front of the two models that prepare files.
"""

import shutil
from pathlib import Path

import pytest

from minimax_h3.core import canvas
from minimax_h3.media import pictures

PICTURE_EDGE = 256
VIDEO_EDGE, VIDEO_PIXELS = 64, 64 * 112
PRODUCT = Path(__file__).resolve().parents[2] / "model_repository"
PREPARERS = ("preprocess", "condition_encoder")
_LINES = f"""\
from minimax_h3.core import canvas
from minimax_h3.media import pictures

canvas.SHORT_EDGE, canvas.MAX_AREA = {VIDEO_EDGE}, {VIDEO_PIXELS}
pictures.REFERENCE_SHORT_EDGE = {PICTURE_EDGE}
"""


def shrink(patch: pytest.MonkeyPatch) -> None:
    """Prepare references small, until `patch` is undone."""
    patch.setattr(canvas, "SHORT_EDGE", VIDEO_EDGE)
    patch.setattr(canvas, "MAX_AREA", VIDEO_PIXELS)
    patch.setattr(pictures, "REFERENCE_SHORT_EDGE", PICTURE_EDGE)


def write_repository(folder: Path) -> Path:
    """The product's repository in `folder`, preparing references small."""
    shutil.copytree(
        PRODUCT, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in PREPARERS:
        shim = folder / name / "1" / "model.py"
        shim.write_text(_LINES + shim.read_text())
    return folder
