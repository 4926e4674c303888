"""`h3 eval --url`: the server makes what the library makes, bit by bit."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from running_server import running

from build_engines.h3_tiny import assemble
from build_engines.train_tiny.architecture import new_audio_vae, new_video_vae
from build_engines.train_tiny.dit_learner import TextAndTransformer
from build_engines.train_tiny.vae_files import save_audio_vae, save_video_vae
from h3_client.cli import main
from h3_client.client import H3Client
from minimax_h3.serve.settings import ServeSettings


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Untrained, with open gates, so that every part counts."""
    parts = tmp_path_factory.mktemp("parts")
    save_video_vae(new_video_vae(0), [0.0] * 24, [0.5] * 24, parts / "video_vae")
    save_audio_vae(new_audio_vae(0), [0.0] * 32, [0.5] * 32, parts / "audio_vae")
    networks = TextAndTransformer(4)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in networks.transformer.named_parameters():
            if "adaln" in name or "_out." in name:
                parameter.normal_(std=0.1)
    networks.save(parts)
    return assemble(parts, tmp_path_factory.mktemp("out") / "h3-tiny")


def test_library_and_server_make_equal_clips(
    checkpoint: Path, serve_settings: Callable[..., ServeSettings], tmp_path: Path
) -> None:
    words = ["eval", "--checkpoint", str(checkpoint), "--output", str(tmp_path)]
    words += ["--prompts", "2", "--served", "2", "--conditioned", "0", "--points", "3"]
    with running(serve_settings(checkpoint), in_haste=True) as server:
        assert main([*words, "--sizes", "64x64x107", "--url", server.grpc_url]) == 0
        with H3Client(server.grpc_url) as client:
            plain = client.generate("a red circle", num_inference_steps=2, duration=4.0)
    served = json.loads((tmp_path / "eval.json").read_text())["served"]
    assert [entry["equal"] for entry in served] == [True, True]
    assert served[0]["digest"] != served[1]["digest"]
    assert (plain.metadata["width"], plain.metadata["height"]) == (128, 128)
