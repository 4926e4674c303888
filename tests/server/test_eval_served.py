"""`h3 eval --url`: the server makes what the library makes, bit by bit."""

import json
from pathlib import Path

import pytest
from running_server import RunningServer

from h3_client.cli import main

pytestmark = pytest.mark.quiet  # for the server that quiet tests share


def test_library_and_server_make_equal_clips(
    tiny_checkpoint: Path, server: RunningServer, tmp_path: Path
) -> None:
    words = ["eval", "--checkpoint", str(tiny_checkpoint), "--output", str(tmp_path)]
    words += ["--prompts", "2", "--served", "2", "--conditioned", "0", "--points", "3"]
    assert main([*words, "--sizes", "64x64x107", "--url", server.grpc_url]) == 0
    served = json.loads((tmp_path / "eval.json").read_text())["served"]
    assert [entry["equal"] for entry in served] == [True, True]
    assert served[0]["digest"] != served[1]["digest"]
