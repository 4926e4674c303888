"""README.md against the code it describes."""

import json
import re
import shlex
import struct
import subprocess
from pathlib import Path

import pytest

from minimax_h3.core.config import StageConfig
from minimax_h3.core.contracts import MODELS, REQUEST_INPUTS
from minimax_h3.stages.preprocess import MAX_RETURNED_FRAME_BYTES

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def section(title: str) -> str:
    body = README.partition(f"\n## {title}\n")[2]
    assert body, f"README has no section {title!r}"
    return body.partition("\n## ")[0]


def code_blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_length() -> None:
    assert len(README.splitlines()) < 200


def test_limits_are_the_defaults() -> None:
    limits, config = section("Limits"), StageConfig()
    assert f"`max_packed_rows` rows (up to {config.max_packed_rows:,})" in limits
    assert f"`running_jobs` ({config.running_jobs})" in limits
    assert f"`max_jobs` ({config.max_jobs})" in limits
    assert f"returned frames above {MAX_RETURNED_FRAME_BYTES // 1024**3} GiB" in limits


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    named = set(re.findall(r"`?make ([a-z-]+)", README))
    assert {"demo", "test", "setup", "lint", "render"} <= named
    assert named - {"alone"} <= targets


def test_every_path_of_the_layout_exists() -> None:
    folder = ROOT
    for word in re.findall(
        r"`([^`\s]+)`", section("Where to change what").partition("\nA layer")[0]
    ):
        if word == "make":
            continue
        # `dit/`, `ops/` in one row: a short path is a sibling of the one before it
        here = ROOT / word
        path = here if here.exists() else folder / word
        assert path.exists(), word
        folder = path.parent
    assert (ROOT / "LICENSE").is_file()


def test_every_model_of_the_picture_exists() -> None:
    (picture,) = code_blocks(section("The ensemble"), "")
    for name in set(MODELS):
        assert name in picture, name


def test_h3_commands_and_flags_exist() -> None:
    import argparse
    from importlib.metadata import entry_points

    points = {point.name: point for point in entry_points(group="h3.commands")}
    shown = [line for block in code_blocks(README, "bash") for line in block.splitlines()]
    commands = [
        shlex.split(line.removesuffix(" &"), comments=True)[1:]
        for line in shown
        if line.startswith(".venv/bin/h3 ")
    ]
    assert {words[0] for words in commands} == {"serve", "generate", "check", "jobs"}
    for name, *words in commands:
        parser = argparse.ArgumentParser(exit_on_error=False)
        points[name].load().add_arguments(parser)
        parser.parse_args(words)


def test_the_python_snippet_compiles_and_uses_real_tensors() -> None:
    (snippet,) = code_blocks(section("Generate"), "python")
    compile(snippet, "README.md", "exec")
    specs = {spec.name: spec.dtype for spec in REQUEST_INPUTS}
    assert specs["PROMPT"] == "STRING"
    assert specs["WIDTH"] == specs["HEIGHT"] == "INT64"
    for name in ("PROMPT", "WIDTH", "HEIGHT"):
        assert f'"{name}"' in snippet


@pytest.fixture(scope="module")
def curl_line() -> str:
    (line,) = (
        line
        for block in code_blocks(README, "bash")
        for line in block.splitlines()
        if line.startswith("curl")
    )
    return line


def test_the_curl_request_has_real_tensors(curl_line: str) -> None:
    words = shlex.split(curl_line.partition(" | ")[0])
    request = json.loads(words[words.index("-d") + 1])
    wire = {"STRING": "BYTES"}
    specs = {spec.name: wire.get(spec.dtype, spec.dtype) for spec in REQUEST_INPUTS}
    for tensor in request["inputs"]:
        assert specs[tensor["name"]] == tensor["datatype"]
    assert request["outputs"] == [{"name": "MP4", "parameters": {"binary_data": True}}]


def test_the_perl_of_the_curl_line_leaves_exactly_the_file(curl_line: str) -> None:
    mp4 = struct.pack(">I", 24) + b"ftypisom\n\0" + bytes(range(256)) + b"0000ftyp"
    header = json.dumps({"outputs": [{"name": "MP4", "datatype": "BYTES"}]}).encode()
    answer = header + struct.pack("<I", len(mp4)) + mp4
    perl = shlex.split(curl_line.partition(" | ")[2].partition(" > ")[0])
    assert perl[0] == "perl"
    done = subprocess.run(perl, input=answer, capture_output=True, check=True)
    assert done.stdout == mp4
    error = b'{"error":"width: 33 is not legal"}'
    done = subprocess.run(perl, input=error, capture_output=True, check=True)
    assert done.stdout == error
