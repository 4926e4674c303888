"""Every refusal names the field, the value and what is legal, whatever a client sent."""

import ast
import math
import re
from pathlib import Path

import pytest
from fakes.refusals import check_refusal
from hypothesis import given
from hypothesis import strategies as st

import minimax_h3
from minimax_h3.core.errors import InvalidRequestError, NotAvailableError
from minimax_h3.core.fields import FIELDS, parse_options
from minimax_h3.core.refusals import MAX_SHOWN_CHARS, reason, refuse, shown, shown_name
from minimax_h3.core.request import GenerationRequest

PACKAGE = Path(minimax_h3.__file__).parent
LONG, HALF, LINES = "y" * 5000, "\ud800", "a\nb\0\x1b[31m"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (-3, "-3"),
        (10**400, "a number of 1,329 bits"),
        (3.9000000953674316, "3.9"),
        (30.0, "30.0"),
        (1e300, "1e+300"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        ("16/9", "'16/9'"),
        (HALF, r"'\ud800'"),
        (LINES, r"'a\nb\x00\x1b[31m'"),
        ("y" * 99, f"'{'y' * 99}'"),
        (LONG, f"'{'y' * 99}...'"),
        (b"\x89PNG", "4 bytes"),
        ((1,), "[1]"),
        ([True, None, [0.5]], "[true, null, [0.5]]"),
        ({"a": LONG}, "an object of 1 entries"),
        (object(), "a object"),
    ],
)
def test_values_are_shown_as_a_client_wrote_them(value: object, text: str) -> None:
    assert shown(value) == text


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.binary()
        | st.text(st.characters(), max_size=300),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=30,
    )
)
def test_whatever_is_shown_is_one_short_printable_line(value: object) -> None:
    text = shown(value)
    assert 0 < len(text) <= MAX_SHOWN_CHARS + 4
    assert text.isprintable()
    text.encode()


def test_names_of_fields() -> None:
    assert shown_name("refrences") == "refrences"
    assert shown_name("") == "''"
    assert shown_name(HALF) == r"\ud800"
    assert len(shown_name(LONG)) <= MAX_SHOWN_CHARS + 4


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError("cannot identify image file <_io.BytesIO object at 0x7f36>"), "cannot identify i"),
        (ValueError("[Errno 1] Invalid data: '<none>'"), "[Errno 1] Invalid data"),
        (FileNotFoundError(2, "No such file or directory"), "No such file or directory"),
        (ValueError(), "ValueError"),
        (ValueError("line 1\nline 2"), "line 1 line 2"),
    ],
)
def test_the_reason_of_a_library_names_no_object(error: Exception, text: str) -> None:
    assert reason(error).startswith(text)
    assert not re.search("[<>\n]|0x", reason(error))
    assert len(reason(ValueError(LONG))) <= MAX_SHOWN_CHARS + 4


# the subject that must be named, the value as it must be shown, the fields of a request
WRONG = [
    *((name, shown(value), {name: value}) for name in FIELDS for value in (HALF, {})),
    *((name, shown(LONG), {name: LONG}) for name in FIELDS if name != "prompt"),
    *(("client", shown(text), {"client": text}) for text in (HALF, "a" * 65, "")),
    ("width", "65 is not legal; .*nearest: 64 or 96", {"width": 65, "height": 64}),
    ("width", "8193 is not legal; .*nearest: 8192", {"width": 8193, "height": 64}),
    ("height", "-1 is not legal; .*nearest: 32", {"width": 64, "height": -1}),
    ("height", "a number of .* bits", {"width": 64, "height": 10**400}),
    ("width", r"768 is not legal; legal: 64\.\.640 with height 160", {"width": 768, "height": 160}),
    ("width", r"32 is not legal; legal: 64\.\.640 with height 160", {"width": 32, "height": 160}),
    ("duration", "5.0 is not legal; .*num_frames, here 124", {"duration": 5.0, "num_frames": 124}),
    ("quality", "'high' is not legal; legal: absent", {"quality": "high"}),
    ("negative_prompt", "'blur' is not legal", {"negative_prompt": "blur"}),
    ("images", "not a field here", {"images": LONG}),
    ("''", "unknown", {"": LONG}),
    (r"\\ud800", "unknown", {HALF: 1}),
    ("y+...", "unknown", {LONG: 1}),
    (r"a\\nb.*", "unknown", {LINES: 1}),
]


@pytest.mark.parametrize(("subject", "value", "fields"), WRONG)
def test_subject_value_and_legal(subject: str, value: str, fields: dict[str, object]) -> None:
    if value.startswith(("'", "[")):
        value = re.escape(value)
    with pytest.raises((InvalidRequestError, NotAvailableError)) as refusal:
        GenerationRequest.from_fields({"prompt": "p"} | fields)
    check_refusal(refusal.value, subject, value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", "'' is not JSON"),
        (LONG, "is not JSON"),
        ("[" * 60_000, r"is not JSON \(too long or too deep\)"),
        ("9" * 60_000, r"is not JSON \(too long or too deep\)"),
        ("1" * 70_000, "70,000 bytes are not legal"),
        ('{"seed": 1, "seed": [2]}', r"field 'seed' is given twice, as 1 and as \[2\]"),
        ('{"\\ud800": 1, "\\ud800": 2}', r"field '\\ud800' is given twice"),
        ("[1, null]", r"\[1, null\] is not legal"),
        ("true", "true is not legal"),
    ],
)
def test_options_that_are_no_object(text: str, value: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        parse_options(text)
    check_refusal(refusal.value, "options", value)


def test_the_helper() -> None:
    assert str(refuse("fps", 30.0, "24")) == "fps: 30.0 is not legal; legal: 24"


def raised(tree: ast.AST) -> list[ast.Call]:
    """Every refusal that is put together by hand."""
    names = {"InvalidRequestError", "NotAvailableError"}
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
    ]


@pytest.mark.parametrize("layer", ["core", "media", "text"])
def test_refusals_by_hand_tell_what_is_legal_and_show_no_python(layer: str) -> None:
    for path in sorted({*(PACKAGE / layer).glob("*.py")} - {PACKAGE / "media/check_command.py"}):
        for call in raised(ast.parse(path.read_text())):
            if isinstance(call.args[0], ast.Name | ast.Call):
                continue  # an error of another process or of the compatibility table, as it was
            place = f"{path.name}:{call.lineno}"
            text = "".join(
                str(part.value) for part in ast.walk(call) if isinstance(part, ast.Constant)
            )
            assert "legal: " in text, place
            inserted = [part for part in ast.walk(call) if isinstance(part, ast.FormattedValue)]
            assert all(part.conversion == -1 for part in inserted), f"{place}: !r instead of shown"
            assert all(
                not (isinstance(part.value, ast.Name) and part.value.id == "error")
                for part in inserted
            ), f"{place}: an error instead of its reason"
