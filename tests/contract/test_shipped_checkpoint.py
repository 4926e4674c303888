"""The checkpoint of the repository: complete, small enough, honest, and the default."""

import json
import re
from pathlib import Path

import pytest

from build_engines.h3_tiny import CARD, part_sizes
from build_engines.train_tiny.model_configs import (
    BUDGET_BYTES,
    CANVAS,
    SIGMA_SHIFTS,
    WHOLE_BYTES,
)
from build_engines.verify import verify
from minimax_h3.core.config import StageConfig
from minimax_h3.weights.manifest import identify

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "checkpoints" / "h3-tiny"


@pytest.mark.parametrize("task_type", ["fl2va", "ref2va"])
def test_every_part_loads_strictly(task_type: str) -> None:
    *_, digest = verify(SHIPPED, task_type)
    assert digest.startswith("digest ")


def test_it_keeps_to_its_budget() -> None:
    files = [path for path in SHIPPED.rglob("*") if path.is_file()]
    own = [path for path in files if path.resolve() == path.absolute()]
    assert sum(path.stat().st_size for path in own) <= WHOLE_BYTES
    for partition in ("FL2VA", "Ref2VA"):
        sizes = {part: size for part, size in part_sizes(SHIPPED / partition).items() if size}
        assert "transformer" in sizes
        for part, size in sizes.items():
            limit = BUDGET_BYTES.get(part) or BUDGET_BYTES[f"{part} {partition}"]
            assert size <= limit, (partition, part)


def test_both_partitions_state_canvas_and_schedule_of_the_training() -> None:
    for partition in ("FL2VA", "Ref2VA"):
        index = json.loads((SHIPPED / partition / "model_index.json").read_text())
        assert index["_minimax_h3"]["canvas"] == CANVAS
        assert index["_minimax_h3"]["sigma_shift_scales"] == SIGMA_SHIFTS


def test_it_is_what_a_server_takes_without_a_checkpoint() -> None:
    folder = ROOT / "model_repository" / "dit_fl2va"
    assert StageConfig().checkpoint_path(folder) == SHIPPED.resolve()
    assert identify(SHIPPED, "fl2va").partition == "FL2VA"


def test_the_card_has_figures_limits_and_licences() -> None:
    card = (SHIPPED / CARD).read_text()
    assert "not measured" not in card
    for figure in ("shape and colour", "motion", "pitch", "pan correlation"):
        assert re.search(rf"^\| {figure} \| [\d.]+ \|", card, re.MULTILINE), figure
    for section in ("## Limits", "## Licences", "## Training"):
        assert section in card
