"""Rules that every source file keeps."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 400
# Folders of a developer's machine; a path that starts there works nowhere else.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|farm|root|home|Users)/\w")


def project_files(pattern: str = "*") -> list[Path]:
    """Files that are in git or would be added."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z", "--", pattern]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def is_collected(path: Path) -> bool:
    """Whether pytest finds a test in the file: `test_*` at the top or in a `Test*` class."""
    tree = ast.parse(path.read_text())
    scopes = [tree.body]
    scopes += [
        node.body
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test")
    ]
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        for scope in scopes
        for node in scope
    )


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_python_files_are_short() -> None:
    lengths = {relative(path): len(path.read_text().splitlines()) for path in project_files("*.py")}
    assert len(lengths) > 50
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_every_test_file_has_a_test() -> None:
    files = [path for path in project_files("tests/*.py") if path.name.startswith("test_")]
    assert len(files) > 10
    assert [relative(path) for path in files if not is_collected(path)] == []


def test_a_file_without_tests_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "test_nothing.py"
    file.write_text("def check_it() -> None:\n    def test_inner() -> None: ...\n")
    assert not is_collected(file)
    file.write_text("class TestIt:\n    def test_it(self) -> None: ...\n")
    assert is_collected(file)


def test_no_machine_paths() -> None:
    found = []
    for path in project_files():
        if path.stat().st_size > 2_000_000 or b"\0" in path.read_bytes():
            continue
        found += [
            f"{relative(path)}:{number}: {line.strip()}"
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
            if MACHINE_PATH.search(line)
        ]
    assert found == []


@pytest.mark.parametrize("path", ["/ro" + "ot/venv", "cd /ho" + "me/someone/x"])
def test_a_machine_path_is_noticed(path: str) -> None:
    assert MACHINE_PATH.search(path)


def test_import_layers() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_only_the_adapter_talks_to_the_python_backend() -> None:
    package = ROOT / "python_backends" / "minimax_h3"
    users = {
        path.relative_to(package).parts[0]
        for path in package.rglob("*.py")
        if "triton_python_backend_utils" in path.read_text()
    } - {"serve"}  # which copies the file of that name
    assert users == {"triton_io"}


def test_names_of_test_files_are_unique() -> None:
    # Test folders are no packages, so pytest knows a file by its name alone.
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
