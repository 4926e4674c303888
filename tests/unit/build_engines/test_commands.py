"""The command line: convert gives what diffusers and transformers load, verify finds faults."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from diffusers import (
    AutoencoderKLMiniMaxH3,
    AutoencoderKLMiniMaxH3Audio,
    MiniMaxH3Scheduler,
    MiniMaxH3Transformer3DModel,
)
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, Qwen3VLForConditionalGeneration

from build_engines.__main__ import main
from build_engines.convert import convert_to_diffusers
from minimax_h3.weights.manifest import identify

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")


@pytest.mark.parametrize(
    ("kind", "folder"),
    [
        (MiniMaxH3Transformer3DModel, "transformer"),
        (AutoencoderKLMiniMaxH3, "vae"),
        (AutoencoderKLMiniMaxH3Audio, "audio_vae"),
        (Qwen3VLForConditionalGeneration, "text_encoder"),
    ],
)
def test_every_module_loads_without_a_missing_or_unexpected_key(
    tiny_diffusers_checkpoint: Path, kind, folder: str
) -> None:
    model, found = kind.from_pretrained(
        tiny_diffusers_checkpoint / folder, output_loading_info=True
    )
    assert not any(found.values()), found
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_schedulers_and_tokenizer_load(tiny_diffusers_checkpoint: Path) -> None:
    for folder, shift in (("scheduler", 12.0), ("audio_scheduler", 3.0)):
        scheduler = MiniMaxH3Scheduler.from_pretrained(tiny_diffusers_checkpoint / folder)
        assert scheduler.shift == shift
    for folder in ("tokenizer", "processor"):
        tokenizer = AutoTokenizer.from_pretrained(tiny_diffusers_checkpoint / folder)
        assert tokenizer("cat", add_special_tokens=False)["input_ids"] == list(b"cat")


def test_the_index_names_what_is_there(tiny_diffusers_checkpoint: Path) -> None:
    index = json.loads((tiny_diffusers_checkpoint / "modular_model_index.json").read_text())
    components = {name for name in index if not name.startswith("_")}
    assert components == {
        path.name for path in tiny_diffusers_checkpoint.iterdir() if path.is_dir()
    }


def test_convert_both_partitions_in_small_shards(tiny_checkpoint: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(tiny_checkpoint, source)
    target = convert_to_diffusers(source, tmp_path / "target", shard_bytes=200_000)
    shards = list((target / "transformer").glob("*.safetensors"))
    assert len(shards) > 2
    assert identify(target, "combined").tasks == ("t2va", "fl2va", "ref2va")
    first = MiniMaxH3Transformer3DModel.from_pretrained(target / "transformer")
    second = MiniMaxH3Transformer3DModel.from_pretrained(target / "transformer_ref")
    assert not torch.equal(first.proj_in.weight, second.proj_in.weight)


def test_convert_refuses_a_broken_source(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source"
    shutil.copytree(tiny_checkpoint, source)
    path = source / "FL2VA" / "audio_vae" / "model.safetensors"
    tensors = load_file(path)
    del tensors["dec_in_proj.bias"]
    save_file(tensors, path)
    command = ["convert", str(source), str(tmp_path / "target"), "--to", "diffusers"]
    assert main(command) == 1
    assert "1 missing: dec_in_proj.bias" in capsys.readouterr().err


def test_convert_refuses_a_target_in_use(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["convert", str(tiny_checkpoint), str(tmp_path), "--to", "diffusers"]) == 1
    assert "exists and is not empty" in capsys.readouterr().err
    assert main(["convert", str(tmp_path), str(tmp_path / "new"), "--to", "diffusers"]) == 1
    assert "holds no official partition" in capsys.readouterr().err


@pytest.mark.parametrize("layout", ["official", "diffusers"])
def test_verify_prints_a_table(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], layout: str
) -> None:
    name = "tiny_checkpoint" if layout == "official" else "tiny_diffusers_checkpoint"
    folder = request.getfixturevalue(name)
    assert main(["verify", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert f"{layout} layout, partition FL2VA" in printed
    rows = {line.split()[0]: line.split()[1:] for line in printed.splitlines() if line}
    assert rows["audio_vae"] == ["1087", "953,257", "3,813,028", "1087", "F32"]
    assert {"transformer", "text_encoder", "video_vae"} <= set(rows)
    assert identify(folder, "fl2va").digest in printed


def test_verify_finds_values_that_are_not_finite(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "copy"
    shutil.copytree(tiny_checkpoint, root)
    path = root / "FL2VA" / "video_vae" / "source" / "model.safetensors"
    tensors = load_file(path)
    tensors["quant_conv.bias"][3] = float("nan")
    save_file(tensors, path)
    assert main(["verify", str(root)]) == 1
    error = capsys.readouterr().err
    assert "video_vae: 1 tensors with values that are not finite: quant_conv.bias" in error


def test_tiny_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["tiny", str(tmp_path), "--layout", "diffusers", "--partition", "Ref2VA"]
    assert main([*command, "--seed", "5"]) == 0
    assert f"wrote {tmp_path}" in capsys.readouterr().out
    assert identify(tmp_path, "ref2va").tasks == ("ref2va",)


def test_tiny_command_with_a_canvas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tiny", str(tmp_path / "small"), "--canvas", "small"]) == 0
    assert identify(tmp_path / "small", "combined").canvas.short_edge == 96
    command = ["tiny", str(tmp_path / "other"), "--canvas", "small", "--layout", "diffusers"]
    assert main(command) == 1
    assert "canvas: 'small' is not legal with layout 'diffusers'" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
