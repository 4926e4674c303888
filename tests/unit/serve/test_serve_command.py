"""The command line of `h3 serve`."""

import argparse
import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from minimax_h3.core.config import StageConfig
from minimax_h3.serve import command, service
from minimax_h3.serve.settings import ServeSettings

Settings = Callable[..., ServeSettings]


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(words)


def words_of(settings: ServeSettings) -> list[str]:
    return [
        *("--checkpoint", settings.stage.checkpoint_dir),
        *("--model-repository", str(settings.model_repository)),
        *("--run-dir", str(settings.run_dir)),
        *("--tritonserver", str(settings.tritonserver)),
        *("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"),
    ]


def test_without_options_it_is_the_typed_configuration() -> None:
    assert command.settings_of(parse()) == ServeSettings(stage=StageConfig())


def test_every_option_reaches_its_field(tmp_path: Path) -> None:
    options = parse(
        *("--checkpoint", str(tmp_path), "--task-type", "fl2va", "--device", "cuda:1"),
        *("--dtype", "bf16", "--attention", "sdpa", "--running-jobs", "2", "--max-jobs", "3"),
        *("--row-ops", "reference", "--adaln-weights", "host"),
        *("--max-packed-rows", "999", "--cpu-threads", "1", "--test-step-delay-ms", "2.5"),
        *("--media-root", str(tmp_path), "--test-hang-at-step", "4"),
        *("--host", "0.0.0.0", "--http-port", "1", "--grpc-port", "2", "--metrics-port", "3"),
        *("--model-repository", str(tmp_path), "--run-dir", "r", "--tritonserver", "t"),
        *("--log-level", "verbose", "--ready-timeout", "7", "--grace", "8"),
        *("--hang-timeout", "9", "--silence-timeout", "10", "--log-format", "json"),
        *("--otlp-url", "http://127.0.0.1:4318/v1/traces"),
        *("--weights", "dummy", "--preflight", "warn"),
        *("--decoder-ops", "compiled", "--decoder-tiles", "7", "--warm-up", "64x64x107"),
    )
    assert command.settings_of(options) == ServeSettings(
        stage=StageConfig(
            checkpoint_dir=str(tmp_path),
            device="cuda:1",
            dtype="bf16",
            attention="sdpa",
            row_ops="reference",
            adaln_weights="host",
            weights="dummy",
            decoder_ops="compiled",
            decoder_tiles=7,
            warm_up="64x64x107",
            running_jobs=2,
            max_jobs=3,
            max_packed_rows=999,
            media_root=str(tmp_path),
            cpu_threads=1,
            test_step_delay_ms=2.5,
            test_hang_at_step=4,
        ),
        preflight="warn",
        fits_rows=False,
        host="0.0.0.0",
        http_port=1,
        grpc_port=2,
        metrics_port=3,
        model_repository=tmp_path,
        run_dir=Path("r"),
        tritonserver=Path("t"),
        log_level="verbose",
        ready_timeout_s=7.0,
        grace_s=8.0,
        hang_timeout_s=9.0,
        silence_timeout_s=10.0,
        log_format="json",
        otlp_url="http://127.0.0.1:4318/v1/traces",
    )


def test_a_relative_checkpoint_counts_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = command.settings_of(parse("--checkpoint", "weights"))
    assert settings.stage.checkpoint_dir == str(tmp_path / "weights")


def test_an_error_is_one_line_and_a_status(
    settings_with: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_with(tritonserver=Path("/nowhere"))
    assert command.run(parse(*words_of(settings))) == 1
    output = capsys.readouterr()
    assert output.err == "h3 serve: tritonserver: /nowhere is not an executable file\n"
    assert command.run(parse("--max-jobs", "1")) == 1
    assert (
        "max_jobs: 1 is not legal; legal: running_jobs, here 4, or more" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--max-packed-rows", "99999999"), "max_packed_rows: 99999999 is not legal; legal: 389.."),
        (("--max-packed-rows", "-1"), "max_packed_rows: -1 is not legal; legal: 389..1048576"),
        (("--max-jobs", "100000"), "max_jobs: 100000 is not legal; legal: 1..64"),
        (("--stream-jobs", "100000"), "stream_jobs: 100000 is not legal; legal: 0..512"),
        (("--cpu-threads", "-2"), "cpu_threads: -2 is not legal; legal: 0..1024"),
        (("--decoder-tiles", "9999"), "decoder_tiles: 9999 is not legal; legal: 0..256"),
        (("--ready-timeout", "inf"), "ready-timeout: inf is not legal; legal: 0.1..86400"),
        (("--http-port", "70000"), "http-port: 70000 is not legal; legal: 0..65535"),
    ],
)
def test_a_number_outside_its_range_is_one_line(
    capsys: pytest.CaptureFixture[str], words: tuple[str, str], told: str
) -> None:
    assert command.run(parse(*words)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"h3 serve: {told}")


def test_print_command_starts_nothing_and_leaves_nothing(
    settings_with: Settings,
    fake_server: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = settings_with(tritonserver=fake_server("raise SystemExit('started')"))
    assert command.run(parse(*words_of(settings), "--print-command")) == 0
    text = capsys.readouterr().out
    assert text.startswith("export PATH=")
    assert not settings.run_dir.exists()
    assert f"exec {settings.tritonserver} \\\n  --model-repository=" in text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_it_in_good_order(
    settings_with: Settings,
    fake_server: Callable[[], Path],
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
) -> None:
    before = signal.getsignal(number)
    settings = settings_with(tritonserver=fake_server())
    timer = threading.Timer(1.0, os.kill, (os.getpid(), number))
    timer.start()
    assert command.run(parse(*words_of(settings))) == 0
    timer.join()
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "h3 serve: stopped"
    assert "h3 serve: stopping" in lines
    ready = next(line for line in lines if " ready: " in line)
    assert ready.startswith("h3 serve: ready: HTTP http://127.0.0.1:")
    assert signal.getsignal(number) is before


def test_the_end_of_standard_input_stops_it_in_good_order(
    settings_with: Settings,
    fake_server: Callable[[], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, writer = os.pipe()
    monkeypatch.setattr(command, "STANDARD_INPUT", reader)
    words = [*words_of(settings_with(tritonserver=fake_server())), "--stop-with-stdin"]
    os.write(writer, b"words are no end\n")
    timer = threading.Timer(0.5, os.close, (writer,))
    timer.start()
    assert command.run(parse(*words)) == 0
    timer.join()
    os.close(reader)
    assert not capsys.readouterr().err


def test_a_server_that_dies_while_serving_is_an_error(
    settings_with: Settings,
    fake_server: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "MAX_RESTARTS", 1)
    behaviour = "import threading; threading.Timer(1.0, os._exit, (3,)).start()"
    settings = settings_with(tritonserver=fake_server(behaviour))
    assert command.run(parse(*words_of(settings))) == 1
    output = capsys.readouterr()
    assert "started 1 times again, and still: tritonserver exited with 3, log " in output.err
    assert output.out.count(" ready: ") == 2


def test_print_command_works_while_the_ports_are_taken(
    settings_with: Settings,
    fake_server: Callable[[], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = words_of(settings_with(tritonserver=fake_server()))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words[words.index("--http-port") + 1] = port
        assert command.run(parse(*words)) == 1
        assert f"http-port: {port} cannot be used" in capsys.readouterr().err
        assert command.run(parse(*words, "--print-command")) == 0
    assert f"--http-port={port}" in capsys.readouterr().out


def test_json_lines(
    settings_with: Settings,
    fake_server: Callable[[], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = settings_with(tritonserver=fake_server())
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    assert command.run(parse(*words_of(settings), "--log-format", "json")) == 0
    timer.join()
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert entries[-1]["message"] == "stopped"
    assert {entry["source"] for entry in entries} == {"h3 serve"}
