"""Documents that repeat what the code says."""

from pathlib import Path

from minimax_h3.core.compatibility import as_markdown

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_compatibility_table_is_the_codes() -> None:
    assert as_markdown() in (DOCS / "compatibility.md").read_text()
