"""A checkpoint of any width, written shard by shard, loads strictly and is worth serving."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from build_engines.__main__ import main
from build_engines.full_width import Pencil, write_full_width
from build_engines.released_configs import Sizes, released, text_encoder
from build_engines.tiny_configs import audio_vae_metadata, video_vae_source
from build_engines.verify import verify
from minimax_h3.core.errors import CheckpointError
from minimax_h3.dit.loading import load_transformer
from minimax_h3.text.qwen import TruncatedQwen3VL
from minimax_h3.vae.loading import load_audio_vae, load_video_vae
from minimax_h3.weights.manifest import identify

CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")


def narrow() -> Sizes:
    """The code of the released widths at widths that a test can wait for."""
    transformer = replace(
        released(3, whole=False).transformer,
        hidden_size=48,
        num_heads=2,
        ffn_dim=96,
        text_dim=40,
        freq_dim=32,
        time_hidden_dim=48,
        time_out_dim=32,
    )
    text = text_encoder(51, {"hidden_size": 40}, {"out_hidden_size": 40}, {})
    return Sizes(transformer, text, video_vae_source(), audio_vae_metadata())


def write(folder: Path, *, hollow: bool = False, seed: int = 0) -> Path:
    pencil = Pencil(seed, CPU, hollow)
    return write_full_width(folder, narrow(), pencil, shard_bytes=200_000)


def test_every_component_loads_strictly_from_shards(tmp_path: Path) -> None:
    root = write(tmp_path)
    assert len(list((root / "transformer").glob("model-*.safetensors"))) > 2
    assert "official layout" in "\n".join(verify(tmp_path, "fl2va"))


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second, third = (write(tmp_path / str(n), seed=n // 2) for n in range(3))
    for path in sorted(first.rglob("*.safetensors")):
        name = path.relative_to(first)
        assert path.read_bytes() == (second / name).read_bytes()
        assert path.read_bytes() != (third / name).read_bytes()


def test_a_hollow_one_is_served_with_dummy_weights(tmp_path: Path) -> None:
    solid, hollow = write(tmp_path / "solid"), write(tmp_path / "hollow", hollow=True)
    for path in sorted(solid.rglob("*.safetensors")):
        twin = hollow / path.relative_to(solid)
        assert twin.stat().st_size == pytest.approx(path.stat().st_size, rel=0.05)
    manifest = identify(hollow, "fl2va", drawn=True)
    model = load_transformer(manifest, CPU, torch.float32, adaln_on_host=True)
    assert float(model.blocks[0].attn.qkv.weight.std()) > 0.05
    embeds = TruncatedQwen3VL.load(manifest, CPU, torch.float32).encode(np.arange(30))
    assert 0.1 < float(embeds.std()) < 10
    rng = np.random.default_rng(0)
    latents = rng.standard_normal((24, 7, 4, 4), dtype=np.float32)
    [frames] = load_video_vae(manifest, CPU, torch.float32).decode_clips(latents)
    assert frames.shape == (22, 64, 64, 3)
    assert frames.std() > 10
    wave = load_audio_vae(manifest, CPU).decode(rng.standard_normal((2, 32, 9), dtype=np.float32))
    assert 1e-3 < np.abs(wave).max() <= 1


def test_holes_take_no_room(tmp_path: Path) -> None:
    assert main(["full-width", str(tmp_path), "--blocks", "2", "--hollow"]) == 0
    files = list(tmp_path.rglob("*.safetensors"))
    assert sum(path.stat().st_size for path in files) > 4_000_000_000
    assert sum(512 * path.stat().st_blocks for path in files) < 10_000_000
    config = json.loads((tmp_path / "FL2VA" / "transformer" / "config.json").read_text())
    assert config["num_layers"] == 2
    assert config["hidden_size"] == 5376


def test_a_folder_in_use_and_a_wrong_number_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "FL2VA").mkdir()
    (tmp_path / "FL2VA" / "file").touch()
    with pytest.raises(CheckpointError, match="exists and is not empty"):
        write(tmp_path)
    assert main(["full-width", str(tmp_path / "new"), "--blocks", "51"]) == 1
    assert "blocks: 51 is not legal; legal: 1..50" in capsys.readouterr().err
