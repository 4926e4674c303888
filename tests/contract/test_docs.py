"""Documents that repeat what the code says."""

import re
from pathlib import Path

from minimax_h3.core import limits
from minimax_h3.core.compatibility import as_markdown
from minimax_h3.core.fields import FIELDS
from minimax_h3.core.request_page import page

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_compatibility_table_is_the_codes() -> None:
    assert as_markdown() in (DOCS / "compatibility.md").read_text()


def test_requests_page_is_the_codes() -> None:
    assert (DOCS / "requests.md").read_text() == page(), "run: make docs"


def test_requests_page_names_every_field_and_limit() -> None:
    text = page()
    for name in (*FIELDS, *limits.LIMITS, *limits.MEDIA_FORMATS):
        assert re.search(rf"\b{name}\b", text), name


def test_python_example_of_the_requests_page_compiles() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", page(), re.DOTALL)
    compile(example, "requests.md", "exec")
