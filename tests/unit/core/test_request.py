"""The request contract: what is accepted, what is refused, and how the refusal reads."""

import math

import pytest
from diffusers.modular_pipelines.minimax_h3.modular_pipeline import resolve_canvas_size
from hypothesis import given
from hypothesis import strategies as st

from minimax_h3.core.canvas import canvas_from_ratio, canvas_from_size
from minimax_h3.core.contracts import REQUEST_INPUTS
from minimax_h3.core.errors import InvalidRequestError, NotAvailableError
from minimax_h3.core.fields import (
    FIELDS,
    MEANINGLESS_FIELDS,
    RESERVED_FIELDS,
    parse_options,
)
from minimax_h3.core.request import GenerationRequest

SMALL = {"prompt": "a red ball", "width": 64, "height": 64}


def test_defaults() -> None:
    request = GenerationRequest.from_fields({"prompt": "  a red ball "})
    assert request.prompt == "  a red ball "  # verbatim, never stripped
    assert (request.task, request.width, request.height) == ("t2va", 1344, 768)
    assert (request.num_frames, request.num_points, request.seed) == (124, 50, 42)
    assert (request.flow_shift, request.audio_flow_shift) == (None, None)


@pytest.mark.parametrize(
    ("ratio", "size"),
    [
        ("21:9", (1536, 672)),
        ("16:9", (1344, 768)),
        ("4:3", (1024, 768)),
        ("1:1", (768, 768)),
        ("3:4", (768, 1024)),
        ("9:16", (768, 1344)),
        ("4:1", (2016, 512)),
        ("1:4", (512, 2016)),
        ("2.35:1", (1568, 672)),
    ],
)
def test_published_canvases(ratio: str, size: tuple[int, int]) -> None:
    assert canvas_from_ratio(ratio) == size


@given(st.integers(1, 4000), st.integers(1, 4000))
def test_canvas_equals_the_reference(width: int, height: int) -> None:
    if not 0.25 <= width / height <= 4:
        with pytest.raises(InvalidRequestError, match="between 1:4 and 4:1"):
            canvas_from_size(width, height)
        return
    expected = resolve_canvas_size(width, height, 32, 768, 768 * 1344)
    assert canvas_from_size(width, height) == expected[::-1]


@pytest.mark.parametrize(
    ("fields", "frames"),
    [
        ({"duration": 4.0}, 107),
        ({"duration": 4}, 107),
        ({"duration": 5.0}, 124),
        ({"duration": 15.0}, 362),
        ({"num_frames": 96}, 107),
        ({"num_frames": 120}, 124),
        ({"num_frames": 362}, 362),
    ],
)
def test_lengths_align_up(fields: dict[str, object], frames: int) -> None:
    assert GenerationRequest.from_fields(SMALL | fields).num_frames == frames


# field that must be named, request, part of the legal range that must be told
REFUSED = [
    ("prompt", {"prompt": ""}, "not blank"),
    ("prompt", {"prompt": None}, "absent"),
    ("prompt", {"prompt": " \n\t"}, "not blank"),
    ("prompt", {"prompt": ["a"]}, "not blank"),
    ("prompt", {"prompt": "x" * 32_769}, "1..32768 bytes"),
    ("prompt", {"prompt": "\ud800"}, "UTF-8"),
    ("task", {"task": "t2v"}, "t2va, fl2va, ref2va"),
    ("width", {"width": 1080, "height": 1920}, "multiples of 32"),
    ("height", {"width": 64, "height": 65}, "multiples of 32"),
    ("width", {"width": 0, "height": 64}, "multiples of 32"),
    ("width", {"width": -64, "height": 64}, "multiples of 32"),
    ("width", {"width": 512, "height": 96}, "between 1:4 and 4:1"),
    ("width", {"height": None, "width": 64}, "width and height together"),
    ("height", {"width": None, "height": 64}, "width and height together"),
    ("aspect_ratio", {"aspect_ratio": "16:9"}, "absent when width and height"),
    ("duration", {"duration": 3.9}, "[4, 15]"),
    ("duration", {"duration": 3.99}, "[4, 15]"),
    ("duration", {"duration": 15.01}, "[4, 15]"),
    ("duration", {"duration": 15.1}, "[4, 15]"),
    ("duration", {"duration": math.nan}, "4..15"),
    ("duration", {"duration": math.inf}, "4..15"),
    ("duration", {"duration": "5"}, "4..15"),
    ("duration", {"duration": True}, "4..15"),
    ("duration", {"duration": 10**400}, "4..15"),
    ("duration", {"duration": 5.0, "num_frames": 124}, "one of the two"),
    ("num_frames", {"num_frames": 95}, "96..362"),
    ("num_frames", {"num_frames": 363}, "96..362"),
    ("num_frames", {"num_frames": 124.0}, "96..362"),
    ("num_inference_steps", {"num_inference_steps": 1}, "2..200"),
    ("num_inference_steps", {"num_inference_steps": 201}, "2..200"),
    ("seed", {"seed": -1}, "0..2^63"),
    ("seed", {"seed": 2**63}, "0..2^63"),
    ("seed", {"seed": 2**63 - 1, "num_outputs": 2}, "seed + num_outputs"),
    ("num_outputs", {"num_outputs": 0}, "1..10"),
    ("num_outputs", {"num_outputs": 11}, "1..10"),
    ("fps", {"fps": 24.9}, "24"),
    ("fps", {"fps": 30}, "24"),
    ("fps", {"fps": 23.976}, "24"),
    ("return_frames", {"return_frames": 1}, "true or false"),
    ("flow_shift", {"flow_shift": 0}, "0.01..100"),
    ("flow_shift", {"flow_shift": 1e-300}, "0.01..100"),
    ("video_crf", {"video_crf": 18.0}, "18.0 is not legal; legal: 0..51 (int)"),
    ("audio_flow_shift", {"audio_flow_shift": -3.0}, "0.01..100"),
    ("noise_recipe", {"noise_recipe": "gpu"}, "per_stream, single_stream"),
    ("video_preset", {"video_preset": "placebo"}, "ultrafast"),
    ("video_crf", {"video_crf": 52}, "0..51"),
    ("width", {"width": 30, "height": 30}, "nearest: 32"),
    ("refrences", {"refrences": []}, "known fields"),
    ("short_edge", {"short_edge": 720}, "known fields"),
    ("sigmas", {"sigmas": [1.0, 0.5, 0.0]}, "known fields"),
    ("sampler", {"sampler": "euler"}, "known fields"),
    ("negative_prompt", {"negative_prompt": "blur"}, "guidance-distilled"),
]


@pytest.mark.parametrize(("field", "fields", "legal"), REFUSED)
def test_refused_by_name(field: str, fields: dict[str, object], legal: str) -> None:
    merged = {key: value for key, value in (SMALL | fields).items() if value is not None}
    with pytest.raises(InvalidRequestError) as refusal:
        GenerationRequest.from_fields(merged)
    message = str(refusal.value)
    assert message.startswith(f"{field}:")
    assert legal in message
    assert len(message) < 600  # a huge value is not echoed back whole


@pytest.mark.parametrize(
    "ratio", ["5:1", "1:5", "16/9", "0:1", "1:0", "auto", "16:9 ", "", "9:9:9"]
)
def test_bad_ratios(ratio: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^aspect_ratio: "):
        GenerationRequest.from_fields({"prompt": "p", "aspect_ratio": ratio})


@pytest.mark.parametrize("field", sorted(RESERVED_FIELDS))
def test_reserved_fields_are_not_available(field: str) -> None:
    with pytest.raises(NotAvailableError, match=f"^{field}: reserved"):
        GenerationRequest.from_fields(SMALL | {field: 1})


def test_field_sets_do_not_overlap() -> None:
    assert not set(FIELDS) & (RESERVED_FIELDS | MEANINGLESS_FIELDS)
    tensors = {spec.name.lower() for spec in REQUEST_INPUTS} - {"options"}
    assert tensors <= set(FIELDS)


@pytest.mark.parametrize(
    "text",
    ["", "[1]", "3", "{", '{"seed": 1, "seed": 2}', '"x"', "null", "[" * 100_000, "9" * 70_000],
)
def test_bad_options(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^options: "):
        parse_options(text)


def test_options_keep_types() -> None:
    assert parse_options('{"seed": 1, "fps": 24.0}') == {"seed": 1, "fps": 24.0}


@given(
    st.dictionaries(
        st.sampled_from(sorted(FIELDS)) | st.text(max_size=8),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
        max_size=6,
    )
)
def test_any_request_is_valid_or_refused(fields: dict[str, object]) -> None:
    try:
        request = GenerationRequest.from_fields({"prompt": "p"} | fields)
    except (InvalidRequestError, NotAvailableError):
        return
    assert request.num_frames % 17 == 5
    assert request.width % 32 == 0
    assert request.height % 32 == 0


def test_scheduling_fields_have_defaults_and_limits() -> None:
    plain = GenerationRequest.from_fields({"prompt": "p"})
    assert (plain.priority, plain.deadline_s, plain.client) == ("normal", None, "")
    given = {"priority": "high", "deadline_s": 2, "client": "c" * 64}
    asked = GenerationRequest.from_fields({"prompt": "p"} | given)
    assert (asked.priority, asked.deadline_s, asked.client) == ("high", 2.0, "c" * 64)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", "urgent"),
        ("priority", 1),
        ("deadline_s", 0),
        ("deadline_s", -1.0),
        ("deadline_s", 86_401),
        ("deadline_s", float("nan")),
        ("client", ""),
        ("client", "c" * 65),
    ],
)
def test_wrong_scheduling_fields_are_named(name: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{name}: .* is not legal; legal: "):
        GenerationRequest.from_fields({"prompt": "p", name: value})
