"""The tiny checkpoint: reproducible, structured like the release, and worth decoding."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio

from build_engines.shard_writer import write_component
from build_engines.tiny_checkpoint import SHARED, write_tiny, write_tiny_pair
from build_engines.tiny_configs import SMALL_CANVAS
from minimax_h3.core.canvas import RELEASED, CanvasRule, canvas_from_ratio
from minimax_h3.core.constants import PIXEL_MEAN, PIXEL_STD
from minimax_h3.core.errors import CheckpointError
from minimax_h3.weights.manifest import identify
from minimax_h3.weights.safetensors_files import read_component

LATENT_FRAMES, SOUND_LATENTS = 12, 30


def _digest(folder: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            total.update(str(path.relative_to(folder)).encode())
            total.update(path.read_bytes())
    return total.hexdigest()


def test_the_same_seed_gives_the_same_bytes(tiny_checkpoint: Path, tmp_path: Path) -> None:
    write_tiny_pair(tmp_path / "again", 0)
    assert _digest(tmp_path / "again") == _digest(tiny_checkpoint)
    write_tiny(tmp_path / "one", 0, "FL2VA")
    assert _digest(tmp_path / "one" / "FL2VA") == _digest(tiny_checkpoint / "FL2VA")


def test_what_the_partitions_share_is_written_once(tiny_checkpoint: Path, tmp_path: Path) -> None:
    second = tiny_checkpoint / "Ref2VA"
    assert sorted(path.name for path in second.iterdir() if path.is_symlink()) == sorted(SHARED)
    moved = tmp_path / "moved"  # the links are relative
    shutil.copytree(tiny_checkpoint, moved, symlinks=True)
    for folder in SHARED:
        assert (moved / "Ref2VA" / folder).resolve() == moved / "FL2VA" / folder
    both = identify(moved, "combined")
    assert both.tasks == ("t2va", "fl2va", "ref2va")
    shutil.rmtree(moved / "FL2VA")
    with pytest.raises(CheckpointError, match="Ref2VA: exists and is not empty"):
        write_tiny_pair(moved, 0)


def test_another_seed_gives_other_weights(tiny_checkpoint: Path, tmp_path: Path) -> None:
    write_tiny(tmp_path, 1, "FL2VA")
    files = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.safetensors"))
    assert len(files) == 7
    for file in files:
        assert (tmp_path / file).read_bytes() != (tiny_checkpoint / file).read_bytes(), file


def test_partitions_differ_in_the_transformer_alone(tiny_checkpoint: Path, tmp_path: Path) -> None:
    other = write_tiny(tmp_path, 0, "Ref2VA")
    differing = {
        path.relative_to(other).parts[0]
        for path in other.rglob("*")
        if path.is_file()
        and path.read_bytes() != (tiny_checkpoint / "FL2VA" / path.relative_to(other)).read_bytes()
    }
    assert differing == {"transformer", "model_index.json"}
    manifest = identify(tmp_path, "ref2va")
    assert (manifest.partition, manifest.tasks) == ("Ref2VA", ("ref2va",))


def test_the_small_canvas_is_an_eighth_of_the_released_one(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    write_tiny_pair(tmp_path, 0, SMALL_CANVAS)
    small, plain = (identify(root, "combined") for root in (tmp_path, tiny_checkpoint))
    assert plain.canvas == RELEASED
    assert small.canvas == CanvasRule(
        RELEASED.short_edge // 8,
        RELEASED.max_area // 64,
        RELEASED.reference_short_edge // 8,
        RELEASED.ratio,
    )
    assert small.digest == plain.digest, "the weights are the same"
    assert canvas_from_ratio("16:9", small.canvas) == (160, 96)


def test_a_folder_in_use_is_refused(tiny_checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match="exists and is not empty"):
        write_tiny(tiny_checkpoint, 0, "FL2VA")


def test_structure_of_the_release(tiny_checkpoint: Path) -> None:
    root = tiny_checkpoint / "FL2VA"
    assert sum(path.stat().st_size for path in root.rglob("*")) < 8.5e6
    for folder in ("transformer", "text_encoder"):
        assert len(list((root / folder).glob("model-*-of-*.safetensors"))) >= 2
        assert (root / folder / "model.safetensors.index.json").is_file()
    manifest = identify(root, "fl2va")
    transformer = manifest.weights["transformer"].tensors
    inner, hidden = manifest.dit_config.inner_dim, manifest.dit_config.hidden_size
    assert inner != hidden
    assert transformer["blocks.0.attn.qkv_proj.weight"].shape == (3 * inner, hidden)
    assert transformer["rope.inv_freq"][:2] == ("F32", (16,))
    island = [name for name, header in transformer.items() if header.dtype == "F32"]
    assert len(island) == 13
    text = manifest.weights["text_encoder"].tensors
    assert "model.language_model.layers.50.self_attn.q_norm.weight" in text
    assert "model.visual.deepstack_merger_list.0.linear_fc1.weight" in text
    assert {header.dtype for header in text.values()} == {"BF16"}
    video = manifest.weights["video_vae"].tensors
    assert "decoder.mask_token" in video
    assert any("nin_shortcut" in name for name in video)
    audio = manifest.weights["audio_vae"].tensors
    assert len(audio) == 1087  # Source: model sheet 4.2
    assert {header.dtype for header in (*video.values(), *audio.values())} == {"F32"}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_decoded_picture_and_sound_are_neither_constant_nor_clipped(
    tiny_diffusers_checkpoint: Path,
) -> None:
    generator = torch.Generator().manual_seed(0)
    video = AutoencoderKLMiniMaxH3.from_pretrained(tiny_diffusers_checkpoint / "vae").eval()
    audio = AutoencoderKLMiniMaxH3Audio.from_pretrained(tiny_diffusers_checkpoint / "audio_vae")
    latents = torch.randn(1, 24, LATENT_FRAMES, 4, 4, generator=generator)
    sound = torch.randn(2, 32, SOUND_LATENTS, generator=generator)
    with torch.inference_mode():
        frames = video.decode(_denormalised(latents, video)).sample[0]
        wave = audio.eval().decode(_denormalised(sound, audio)).sample
        moments = video.encode(frames[None, :, :17]).latent_dist
    shape = (3, 1, 1, 1)
    pixels = frames * torch.tensor(PIXEL_STD).view(shape) + torch.tensor(PIXEL_MEAN).view(shape)
    pixels = pixels.clamp(0, 1)
    assert pixels.std() > 0.1
    assert (pixels[:, 1:] - pixels[:, :-1]).abs().mean() > 1 / 255
    assert ((pixels > 0) & (pixels < 1)).float().mean() > 0.9
    assert (wave - wave.mean()).square().mean().sqrt() > 0.01
    assert (wave[0] - wave[1]).square().mean().sqrt() > 0.01
    assert wave.abs().max() < 0.9
    assert moments.mean.isfinite().all()
    assert moments.std.isfinite().all()


def _denormalised(latents: torch.Tensor, module) -> torch.Tensor:
    shape = (1, -1, *[1] * (latents.ndim - 2))
    mean = torch.tensor(module.config.latents_mean).view(shape)
    return latents * torch.tensor(module.config.latents_std).view(shape) + mean


def test_shards_respect_the_limit(tmp_path: Path) -> None:
    tensors = [(name, torch.full((10,), float(index))) for index, name in enumerate("abcde")]
    assert write_component(tmp_path / "many", "model", tensors, 80) == 3
    files = read_component(tmp_path / "many", "model")
    assert [file.path.name for file in files.files] == [
        f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)
    ]
    assert sorted(files.tensors) == list("abcde")
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 200
    assert write_component(tmp_path / "one", "model", tensors, 1000) == 1
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["model.safetensors"]
