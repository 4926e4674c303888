"""A stand-in for tritonserver: a script that serves the health route, and misbehaves on request."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from minimax_h3.core.config import StageConfig
from minimax_h3.core.contracts import MODELS
from minimax_h3.serve.preflight import Preflight
from minimax_h3.serve.residency import ResidentPlan
from minimax_h3.serve.settings import ServeSettings

SCRIPT = """#!{python}
import http.server, os, pathlib, signal, subprocess, sys, time
port = int(next(word for word in sys.argv if word.startswith("--http-port=")).split("=")[1])
prefix = next(word for word in sys.argv if "shm-region-prefix-name=" in word).split("=")[-1]
pathlib.Path("/dev/shm", prefix + "region").write_bytes(b"x")
print('I1129 15:30:54.15 1 model_lifecycle.cc:839] "successfully loaded \\'jobs\\'"', flush=True)
{behaviour}
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *args):
        pass
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def fake_server(tmp_path: Path) -> Callable[[str], Path]:
    """Writes an executable that acts as tritonserver, with `behaviour` run first."""

    def write(behaviour: str = "") -> Path:
        script = tmp_path / "tritonserver"
        script.write_text(SCRIPT.format(python=sys.executable, behaviour=behaviour))
        script.chmod(0o755)
        return script

    return write


def fits_easily(settings: ServeSettings) -> Preflight:
    return Preflight(settings, ResidentPlan((), settings.stage.max_packed_rows, 0), {}, ())


@pytest.fixture
def settings_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ServeSettings]:
    """Settings whose repository and checkpoint pass every check."""
    checkpoint = SimpleNamespace(dit_config=SimpleNamespace(head_dim=128))
    monkeypatch.setattr("minimax_h3.serve.settings.identify", lambda path, task_type: checkpoint)
    monkeypatch.setattr("minimax_h3.serve.server_process.look_ahead", fits_easily)
    for name in MODELS:
        (tmp_path / "repository" / name / "1").mkdir(parents=True)
        (tmp_path / "repository" / name / "1" / "model.py").write_text('"""A shim."""\n')

    def build(**changes: object) -> ServeSettings:
        values = {
            "stage": StageConfig(checkpoint_dir=str(tmp_path / "weights")),
            "model_repository": tmp_path / "repository",
            "run_dir": tmp_path / "run",
            "http_port": 0,
            "grpc_port": 0,
            "metrics_port": 0,
            "ready_timeout_s": 20.0,
            "exit_timeout_s": 1,
        }
        return ServeSettings(**(values | changes))

    return build
