"""docs/model-notes.md against the repository: cited tests, constants, references to sections."""

import ast
import re
from pathlib import Path

from minimax_h3.core import constants

ROOT = Path(__file__).resolve().parents[3]
NOTES = (ROOT / "docs" / "model-notes.md").read_text(encoding="utf-8")
CITED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
REFERENCE = re.compile(r"\b(model|pipeline) sheet,? (?:section |sections )?(\d(?:\.\d)?)", re.I)


def test_every_cited_test_exists() -> None:
    cited = CITED.findall(NOTES)
    assert len(cited) > 20
    for name, test in cited:
        tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert test in defined, f"{name}::{test}"


def test_every_cited_file_exists() -> None:
    for name in re.findall(r"`((?:tests|core|docs)/[\w/.-]+)`", NOTES):
        here = ROOT / name
        assert here.exists() or (ROOT / "python_backends" / "minimax_h3" / name).exists(), name


def test_every_claim_is_shown_by_a_test() -> None:
    table = NOTES.partition("## Claims that")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 12
    for row in rows:
        claim, code, shown = (cell.strip() for cell in row.strip("|").split("|"))
        assert claim
        assert code
        assert CITED.search(shown), claim


def test_constants_table_is_complete_and_holds_the_values() -> None:
    table = NOTES.partition("\n## Constants\n")[2].partition("\n## ")[0]
    cells = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| `")]
    shown = {name: row[1].strip() for row in cells for name in re.findall(r"`(\w+)`", row[0])}
    public = {
        name: value
        for name, value in vars(constants).items()
        if name.isupper() and not name.startswith("TASK")
    }
    assert set(shown) == set(public)
    for name in set(public) - {"PIXEL_MEAN", "PIXEL_STD", "PATCH_SIZE"}:
        value = public[name]
        spelled = (f"{value:,}", f"{value:g}")
        first = re.match(r"[0-9.,]*[0-9]", shown[name])
        assert first is not None, name
        assert first[0] in spelled, (name, shown[name])
    assert shown["PATCH_SIZE"].startswith(str(constants.PATCH_SIZE))


def test_every_section_that_the_code_refers_to_is_there() -> None:
    model, pipeline = (
        NOTES.partition(f"\n## {name} sheet\n")[2].partition("\n## ")[0]
        for name in ("Model", "Pipeline")
    )
    headings = {
        kind: set(re.findall(r"^#{3,4} (\d(?:\.\d)?)", text, re.MULTILINE))
        for kind, text in (("model", model), ("pipeline", pipeline))
    }
    named = {
        (kind.lower(), number)
        for folder in ("python_backends", "build_engines")
        for path in (ROOT / folder).rglob("*.py")
        for kind, number in REFERENCE.findall(path.read_text(encoding="utf-8"))
    }
    assert len(named) > 10
    assert {(kind, number) for kind, number in named if number not in headings[kind]} == set()
