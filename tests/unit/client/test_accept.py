"""`make accept` without a server: which requests it makes, how it judges, what it logs."""

import contextlib
import json
import os
import subprocess
import sys
import time
import wave
from pathlib import Path

import pytest

from h3_client import accept, cli
from h3_client.client import H3Client
from h3_client.demo import DemoError
from h3_client.memory_log import MemoryLog
from h3_client.sample_media import MissingMediaError, clip, picture, speech


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Stands in for the command line; every clip is made, and `failing` ones are judged bad."""
    seen: list[list[str]] = []

    def main(words: list[str]) -> int:
        seen.append(list(words))
        if words[0] == "generate":
            report = {"client_s": 1.0, "client_rtf": 0.2, "metadata": {"width": 128}}
            sys.stdout.write(json.dumps(report))
        return 1 if words[0] == "check" and "ref2va-two" in words[1] else 0

    monkeypatch.setattr(cli, "main", main)
    monkeypatch.setattr(accept, "speech", lambda target: target)
    monkeypatch.setattr(H3Client, "ping", lambda client: {"ok": True})
    return seen


def run(folder: Path, *words: str) -> int:
    return accept.main(["--checkpoint", "c", "--output", str(folder), *words])


def test_every_task_is_generated_and_checked(
    commands: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--url", "h:1", "--set", "seed=7 num_frames=124") == 1
    generated = {Path(words[3]).stem: words for words in commands if words[0] == "generate"}
    assert list(generated) == ["t2va", "fl2va", "ref2va-image-audio", "ref2va-two-videos"]
    for words in generated.values():
        assert words[words.index("--url") + 1] == "h:1"
        assert {"width=128", "seed=7", "num_frames=124"} <= set(words)
        assert "duration=4" not in words
    assert {"--first", "--last"} <= set(generated["fl2va"])
    assert generated["ref2va-two-videos"].count("--ref") == 2
    checks = [words for words in commands if words[0] == "check"]
    assert len(checks) == 4
    assert json.loads((tmp_path / "fl2va.json").read_text()) == {"width": 128}
    told = capsys.readouterr()
    assert told.out.startswith("accept: the server at h:1, with the checkpoint that it serves\n")
    head, *lines = told.out.splitlines()[-6:-1]
    assert head.split() == ["case", "seconds", "rtf", "verdict"]
    assert lines[0].split() == ["t2va", "1.00", "0.2", "passed"]
    assert lines[3].split() == ["ref2va-two-videos", "1.00", "0.2", "fails", "h3", "check"]
    assert "3 of 4 accepted" in told.out
    assert "failed: ref2va-two-videos" in told.err


def test_a_server_of_its_own_serves_every_task_and_leaves_its_logs(
    commands: list[list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[object] = []

    @contextlib.contextmanager
    def server(checkpoint, run_dir, options, *, keep_log):
        asked.extend([checkpoint, *options, keep_log])
        folder = run_dir / "accept" / "start"
        folder.mkdir(parents=True)
        (folder / "server.log").write_text("log")
        (folder / "server.json").write_text(json.dumps({"pid": os.getpid()}))
        yield "h:2"

    monkeypatch.setattr(accept, "running_server", server)
    killed = tmp_path / "run" / "killed" / "start"
    killed.mkdir(parents=True)
    (killed / "server.json").write_text("{}")
    run(tmp_path, "--serve", "--device cpu")
    checkpoint = f"accept: checkpoint {Path('c').resolve()}"
    assert capsys.readouterr().out.splitlines()[0] == checkpoint
    assert asked == [Path("c"), "--task-type", "combined", "--device", "cpu", True]
    assert (tmp_path / "server.log").read_text() == "log"
    assert not (tmp_path / "run").exists()
    assert str(os.getpid()) in (tmp_path / "memory.tsv").read_text()
    run(tmp_path, "--random-weights")
    told = capsys.readouterr().out.splitlines()[0]
    assert told == f"{checkpoint}; {accept.NOISE}"
    assert "expect noise" in told


def test_a_clip_that_is_not_made_is_in_the_table(
    commands: list[list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cli, "main", lambda words: 1)
    assert run(tmp_path, "--url", "h:1") == 1
    assert capsys.readouterr().out.splitlines()[-2].split() == [
        *("ref2va-two-videos", "-", "-", "not", "made")
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("sede=7", "accept: sede: unknown request field"),
        ("seed=-1", "accept: seed: -1 is not legal; legal: 0.."),
        ("seed", "accept: --option seed: legal: KEY=JSON"),
        ("width=100", "accept: width: 100 is not legal; legal: multiples of 32"),
    ],
)
def test_a_wrong_field_is_refused_before_anything_starts(
    commands: list[list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: str,
    message: str,
) -> None:
    assert run(tmp_path / "out", "--set", words) == 1
    assert message in capsys.readouterr().err
    assert commands == []
    assert not (tmp_path / "out").exists()


def test_a_wrong_address_is_one_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--url", "127.0.0.1:1") == 1
    assert capsys.readouterr().err.startswith(
        "accept: no Triton server answers at 127.0.0.1:1 (gRPC)"
    )


def test_the_log_that_an_error_names_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def server(checkpoint, run_dir, options, *, keep_log):
        (run_dir / "accept" / "start").mkdir(parents=True)
        (run_dir / "accept" / "start" / "server.log").write_text("log")
        raise DemoError("not ready")
        yield

    monkeypatch.setattr(accept, "running_server", server)
    assert run(tmp_path) == 1
    assert (tmp_path / "run" / "accept" / "start" / "server.log").read_text() == "log"
    assert (tmp_path / "server.log").read_text() == "log"


def test_memory_of_a_process_and_its_children(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
    try:
        with MemoryLog(os.getpid(), tmp_path / "memory.tsv"):
            time.sleep(0.1)
    finally:
        child.kill()
        child.wait()
    head, *lines = (tmp_path / "memory.tsv").read_text().splitlines()
    assert head.split("\t") == ["seconds", "pid", "name", "resident_bytes"]
    pids = {int(line.split("\t")[1]) for line in lines}
    assert {os.getpid(), child.pid} <= pids
    assert all(int(line.split("\t")[3]) > 0 for line in lines)


def test_without_a_speaker_a_tone_stands_in_and_is_announced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (case,) = (one for one in accept.cases(tmp_path) if one.name == "ref2va-image-audio")
    assert case.files[-1] == str(tmp_path / "tone.wav")
    assert "a tone stands in for speech" in capsys.readouterr().err
    with wave.open(case.files[-1]) as file:
        assert (file.getnframes(), file.getframerate()) == (88_200, 22_050)


def test_sample_media_are_there_or_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert picture("rocket.jpg").read_bytes()[:2] == b"\xff\xd8"
    assert clip("bikes.mp4").read_bytes()[4:8] == b"ftyp"
    with pytest.raises(MissingMediaError, match="scikit-image has no"):
        picture("absent.png")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingMediaError, match="espeak-ng is not installed"):
        speech(tmp_path / "a.wav")
