import subprocess
import sys
import types

import pytest

from h3_client import cli
from h3_client.errors import H3ClientError
from minimax_h3.core.errors import InvalidRequestError


class Point:
    """An entry point whose module is made up."""

    def __init__(self, name: str, run, summary: str = "does it") -> None:
        self.name = name
        self.loads = 0
        self.module = types.SimpleNamespace(
            SUMMARY=summary, add_arguments=lambda parser: None, run=run
        )

    def load(self):
        self.loads += 1
        if isinstance(self.module.run, ImportError):
            raise self.module.run
        return self.module


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch):
    def install(**runs):
        points = [Point(name, run) for name, run in runs.items()]
        monkeypatch.setattr(cli, "entry_points", lambda group: points)
        return points

    return install


def raising(error: BaseException):
    def run(args):
        raise error

    return run


def test_only_the_chosen_command_is_imported(commands) -> None:
    one, two = commands(one=lambda args: 3, two=lambda args: 0)
    assert cli.main(["one"]) == 3
    assert (one.loads, two.loads) == (1, 0)


def test_help_lists_every_command_even_one_that_cannot_be_imported(commands, capsys) -> None:
    commands(one=lambda args: 0, gone=ImportError("no torch"))
    assert cli.main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert "one        does it" in printed
    assert "gone       (not available here: no torch)" in printed


@pytest.mark.parametrize("words", [[], ["nonsense"]])
def test_no_or_an_unknown_command_gets_the_help_and_code_2(commands, capsys, words) -> None:
    commands(one=lambda args: 0)
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    assert "one        does it" in captured.out + captured.err


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (H3ClientError("UNAVAILABLE", "full"), 1, "h3 one: UNAVAILABLE: full"),
        (FileNotFoundError(2, "No such file", "a.mp4"), 1, "No such file"),
        (InvalidRequestError("a.mp4: odd"), 1, "h3 one: a.mp4: odd"),
        (ValueError("odd"), 1, "h3 one: ValueError: odd"),
        (KeyboardInterrupt(), 130, "h3 one: interrupted"),
    ],
)
def test_errors_are_words_and_codes(commands, capsys, error, code: int, line: str) -> None:
    commands(one=raising(error))
    assert cli.main(["one"]) == code
    printed = capsys.readouterr().err
    assert line in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize("words", [["--debug", "one"], ["one", "--debug"]])
def test_debug_shows_where(commands, capsys, words: list[str]) -> None:
    commands(one=raising(ValueError("odd")))
    assert cli.main(words) == 1
    assert "Traceback" in capsys.readouterr().err


def test_wrong_usage_is_code_2(commands) -> None:
    commands(one=lambda args: 0)
    with pytest.raises(SystemExit) as left:
        cli.main(["one", "--nonsense"])
    assert left.value.code == 2


def run_h3(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "h3_client.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_the_installed_commands() -> None:
    done = run_h3("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("minimax-h3-triton ")
    points = {point.name for point in cli.entry_points(group=cli.GROUP)}
    assert points >= {"generate", "jobs", "serve", "check"}


def test_no_server_is_one_clear_line() -> None:
    done = run_h3("jobs", "--url", "127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith("h3 jobs: CONNECTION: no Triton server answers at 127.0.0.1:1")
    assert done.stderr.count("\n") == 1


def test_the_client_imports_neither_torch_nor_the_server_apart_from_its_tables() -> None:
    code = (
        "import sys, h3_client.generate, h3_client.jobs_command, h3_client.transport\n"
        "import tritonclient.grpc, tritonclient.http\n"
        "bad = {'torch', 'diffusers', 'transformers', 'av', 'PIL'} & set(sys.modules)\n"
        "ours = {name for name in sys.modules if name.split('.')[0] == 'minimax_h3'}\n"
        "bad |= {name for name in ours if name.split('.')[1:2] not in ([], ['core'])}\n"
        "sys.exit(str(bad) if bad else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
