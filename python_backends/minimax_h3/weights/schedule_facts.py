"""What a checkpoint states of its noise schedule: sigma shifts, and positions if distilled."""

import itertools
import math
from pathlib import Path

from minimax_h3.core.constants import AUDIO_FLOW_SHIFT, VIDEO_FLOW_SHIFT
from minimax_h3.core.errors import CheckpointError
from minimax_h3.weights.safetensors_files import read_json


def scheduler_shift(folder: Path) -> object:
    """The shift that a diffusers scheduler folder states, if it does."""
    config = folder / "scheduler_config.json"
    return read_json(config).get("shift") if config.is_file() else None


def sigma_shifts(source: Path, video: object, audio: object) -> dict[str, object]:
    """Both shifts, the released ones where a checkpoint states none.

    Raises:
        CheckpointError: one is not a positive number.
    """
    stated = {"video": video, "audio": audio}
    default = {"video": VIDEO_FLOW_SHIFT, "audio": AUDIO_FLOW_SHIFT}
    facts: dict[str, object] = {
        "defaulted_shifts": tuple(name for name, value in stated.items() if value is None)
    }
    for name, value in stated.items():
        shift = default[name] if value is None else value
        if not _is_number(shift) or not float(shift) > 0:  # type: ignore[arg-type]  # a number
            raise CheckpointError(
                f"{source}: {name} sigma shift {value!r} is not legal; legal: a positive number"
            )
        facts[f"{name}_flow_shift"] = float(shift)  # type: ignore[arg-type]  # a number
    return facts


def base_schedule(index: Path, positions: object) -> tuple[float, ...] | None:
    """The positions of a distilled release; None where none are stated.

    Raises:
        CheckpointError: they are not falling numbers.
    """
    if positions is None:
        return None
    if (
        not isinstance(positions, list)
        or len(positions) < 2
        or not all(_is_number(position) for position in positions)
        or any(after >= before for before, after in itertools.pairwise(positions))
    ):
        raise CheckpointError(
            f"{index}: _minimax_h3.base_schedule {positions!r} is not legal; legal: at least two "
            "falling numbers"
        )
    return tuple(float(position) for position in positions)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
