"""Every example of the documents: commands that exist, Python that compiles, prompts to be drawn.

`tests/unit/stages/test_request_examples.py` runs those of docs/requests.md.
"""

import argparse
import ast
import importlib.util
import json
import re
import shlex
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from build_engines.train_tiny.captions import parse_caption
from build_engines.train_tiny.vocabulary import CANVASES
from minimax_h3.core.contracts import MODELS
from minimax_h3.core.fields import FIELDS

ROOT = Path(__file__).resolve().parents[2]
CARD = ROOT / "checkpoints" / "h3-tiny" / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), CARD])
FOR_RELEASED_WEIGHTS = {"gpu.md", "benchmarks.md"}  # whose prompts h3-tiny cannot draw
COMMANDS = {point.name: point for point in entry_points(group="h3.commands")}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in FENCE.findall(page.read_text()) if kind == language]


def commands(page: Path) -> list[list[str]]:
    """Words of every line of shell, with continued lines joined."""
    text = "".join(blocks(page, "bash")).replace("\\\n", " ")
    lines = (shlex.split(line.partition(" | ")[0], comments=True) for line in text.splitlines())
    return [words for words in lines if words]


def parsed(words: list[str]) -> argparse.Namespace:
    """The options of an `h3` command line."""
    name, *options = words
    parser = argparse.ArgumentParser(exit_on_error=False)
    COMMANDS[name].load().add_arguments(parser)
    return parser.parse_args(options)


ALL = [(page, words) for page in PAGES for words in commands(page)]


@pytest.mark.parametrize(
    ("page", "words"), ALL, ids=[f"{page.name}: {' '.join(words)[:60]}" for page, words in ALL]
)
def test_a_command_exists_and_takes_its_options(page: Path, words: list[str]) -> None:
    match words:
        case [program, name, *_] if program in (".venv/bin/h3", "h3"):
            assert name in COMMANDS
            parsed(words[1:])
        case ["make", *targets]:
            targets = [target for target in targets if "=" not in target]
            known = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert set(targets) <= set(known)
        case ["curl", *_]:
            (url,) = (word for word in words if word.startswith("http://"))
            model = re.search(r"/v2/models/(\w+)/", url)
            assert model is None or model[1] in {*MODELS, "minimax_h3"}
            if "-d" in words:
                body = json.loads(words[words.index("-d") + 1])
                names = {one["name"] for one in body["inputs"]} if "inputs" in body else set(body)
                assert {name.lower() for name in names} <= {*FIELDS, "result_as"}
        case [program, "-m", module, *_] if program.endswith("python"):
            assert importlib.util.find_spec(module)
        case [program, "-c", code] if program.endswith("python"):
            compile(code, page.name, "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_compiles_and_imports_what_there_is(page: Path) -> None:
    for text in blocks(page, "python"):
        for node in ast.walk(ast.parse(text, page.name)):
            if isinstance(node, ast.ImportFrom):
                module = importlib.import_module(str(node.module))
                assert all(hasattr(module, name.name) for name in node.names)


def test_prompts_of_examples_are_such_as_the_shipped_checkpoint_was_trained_on() -> None:
    found = 0
    for page, words in ALL:
        if page.name in FOR_RELEASED_WEIGHTS or words[1:2] != ["generate"]:
            continue
        options = parsed(words[1:])
        parse_caption(options.prompt)
        assert (options.width, options.height) in {(None, None), *CANVASES}, words
        found += 1
    assert found >= 4
    for page in PAGES:
        if page.name not in FOR_RELEASED_WEIGHTS:
            assert "a fox" not in page.read_text(), page
