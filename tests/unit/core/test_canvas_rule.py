"""A checkpoint's own canvas: stated in its index, followed from the request to the references."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from minimax_h3.core.canvas import RELEASED, CanvasRule, canvas_from_ratio, canvas_from_size
from minimax_h3.core.errors import CheckpointError
from minimax_h3.core.media_rules import with_canvas
from minimax_h3.core.request import GenerationRequest
from minimax_h3.media.facts import inspect
from minimax_h3.media.prepare import plan_reference
from minimax_h3.stages.stream import guess_rows
from minimax_h3.weights.manifest import identify, stated_canvas

SMALL = CanvasRule(short_edge=128, max_area=128 * 192, reference_short_edge=128, ratio="1:1")
STATED = {"short_edge": 128, "max_area": 128 * 192, "reference_short_edge": 128, "ratio": "1:1"}


def picture(width: int, height: int) -> bytes:
    encoded = io.BytesIO()
    Image.fromarray(np.zeros((height, width, 3), np.uint8)).save(encoded, "PNG")
    return encoded.getvalue()


def test_the_released_rule_is_the_default() -> None:
    assert canvas_from_ratio("16:9") == (1344, 768)
    assert GenerationRequest.from_fields({"prompt": "p"}).width == 1344
    assert RELEASED.reference_short_edge == 2048


def test_a_small_rule_sizes_clips_keyframes_and_references() -> None:
    assert canvas_from_ratio("3:2", SMALL) == (192, 128)
    assert canvas_from_size(500, 500, SMALL) == (128, 128)
    asked = GenerationRequest.from_fields({"prompt": "p"}, SMALL)
    assert (asked.width, asked.height) == (128, 128)
    first = picture(300, 200)
    facts = inspect(first, "keyframes[0]")
    framed = GenerationRequest.from_fields({"prompt": "p", "keyframes": (first,)}, SMALL)
    sized = with_canvas(framed, [facts], SMALL)
    assert (sized.width, sized.height) == (192, 128)
    assert guess_rows(framed, SMALL) < 1200 < guess_rows(framed)
    reference = plan_reference(inspect(picture(64, 64), "references[0]"), 0, 124, canvas=SMALL)
    assert (reference.width, reference.height) == (128, 128)


def state(checkpoint: Path, folder: Path, canvas: object) -> None:
    """The checkpoint's FL2VA partition in `folder`, by links, with a canvas in its index."""
    root = folder / "FL2VA"
    root.mkdir()
    for part in (checkpoint / "FL2VA").iterdir():
        (root / part.name).symlink_to(part)
    index = json.loads((root / "model_index.json").read_text())
    index["_minimax_h3"]["canvas"] = canvas
    (root / "model_index.json").unlink()
    (root / "model_index.json").write_text(json.dumps(index))


def test_a_checkpoint_states_its_own(tiny_checkpoint: Path, tmp_path: Path) -> None:
    before = identify(tiny_checkpoint, "fl2va")
    assert before.canvas == stated_canvas(tiny_checkpoint) == RELEASED
    state(tiny_checkpoint, tmp_path, STATED)
    after = identify(tmp_path, "fl2va")
    assert after.canvas == stated_canvas(tmp_path) == SMALL
    assert after.digest == before.digest, "the weights' name does not depend on it"
    assert stated_canvas(tmp_path / "nowhere") == RELEASED


@pytest.mark.parametrize(
    "canvas", ["small", {"short_edge": 8}, {"edge": 128}, {"max_area": 100}, {"ratio": 1}]
)
def test_what_is_no_rule_is_refused(tiny_checkpoint: Path, tmp_path: Path, canvas: object) -> None:
    state(tiny_checkpoint, tmp_path, canvas)
    with pytest.raises(CheckpointError, match=r"_minimax_h3\.canvas .* is not legal"):
        identify(tmp_path, "fl2va")
