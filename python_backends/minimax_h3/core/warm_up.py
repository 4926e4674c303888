"""Shapes that a server runs once before it is ready, so that no client pays for its first time."""

import re

from minimax_h3.core.constants import AUDIO_FLOW_SHIFT, VIDEO_FLOW_SHIFT
from minimax_h3.core.errors import ConfigError, InvalidRequestError
from minimax_h3.core.fields import MIN_STEPS
from minimax_h3.core.plan import Plan, build_plan
from minimax_h3.core.request import GenerationRequest

LEGAL = "WIDTHxHEIGHTxFRAMES, several with commas between (1344x768x124), or nothing"
TEXT_ROWS = 256


def warm_up_plans(shapes: str) -> tuple[Plan, ...]:
    """Plans of the stated shapes: one clip of one forward each.

    Args:
        shapes: `1344x768x124,768x768x243`, or empty.

    Raises:
        ConfigError: names the shape, and what is legal.
    """
    return tuple(_plan(shape.strip()) for shape in shapes.split(",")) if shapes else ()


def _plan(shape: str) -> Plan:
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})x(\d{1,4})", shape, re.ASCII)
    if match is None:
        raise ConfigError(f"warm_up: {shape!r} is not legal; legal: {LEGAL}")
    fields: dict[str, object] = dict(
        zip(("width", "height", "num_frames"), map(int, match.groups()), strict=True)
    )
    try:
        request = GenerationRequest.from_fields(
            {"prompt": "warm-up", "num_inference_steps": MIN_STEPS, **fields}
        )
    except InvalidRequestError as error:
        raise ConfigError(f"warm_up: {shape!r} is not legal: {error}") from error
    return build_plan(
        request,
        job_id="warm-up",
        alias="",
        text_rows=TEXT_ROWS,
        flow_shift=VIDEO_FLOW_SHIFT,
        audio_flow_shift=AUDIO_FLOW_SHIFT,
        received_at=0.0,
    )
