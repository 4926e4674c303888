"""Documents that repeat what the code says."""

import re
from pathlib import Path

from minimax_h3.core import limits
from minimax_h3.core.compatibility import as_markdown
from minimax_h3.core.fields import FIELDS
from minimax_h3.core.request_page import page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


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


def test_behaviours_name_tests_and_decisions_that_exist() -> None:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    decisions = (DOCS / "decisions.md").read_text()
    for line in (DOCS / "behaviours.md").read_text().splitlines():
        if not line.startswith("| ") or line.startswith("| behaviour "):
            continue
        shown_by = line.strip("| ").rpartition(" | ")[2]
        names = re.findall(r"`(test_\w+)`", shown_by)
        titles = re.findall(r"decision: ([^|]*?\.)(?:,|$)", shown_by)
        assert names or titles, line
        assert [name for name in names if f"def {name}(" not in tests] == []
        assert [title for title in titles if f"**{title}**" not in decisions] == []
