"""Which checkpoint is this: found by metadata, complete or refused by name."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from minimax_h3.core.errors import CheckpointError
from minimax_h3.weights.manifest import identify

REQUIRED = [
    "transformer/config.json",
    "transformer/model-00001-of-00003.safetensors",
    "text_encoder/config.json",
    "text_encoder/model-00002-of-00002.safetensors",
    "video_vae/config.json",
    "video_vae/source/config.json",
    "video_vae/source/model.safetensors",
    "audio_vae/config.json",
    "audio_vae/metadata.json",
    "audio_vae/model.safetensors",
    "tokenizer/tokenizer.json",
    "processor",
]


def test_the_official_partition_and_its_parent(tiny_checkpoint: Path) -> None:
    by_parent = identify(tiny_checkpoint, "fl2va")
    assert by_parent == identify(tiny_checkpoint / "FL2VA", "fl2va")
    assert by_parent.layout == "official"
    assert by_parent.partition == "FL2VA"
    assert by_parent.tasks == ("t2va", "fl2va")
    assert (by_parent.video_flow_shift, by_parent.audio_flow_shift) == (12.0, 3.0)
    assert by_parent.defaulted_shifts == ()
    assert by_parent.base_schedule is None
    assert by_parent.tokenizer == tiny_checkpoint / "FL2VA" / "tokenizer"
    assert by_parent.dit_config.num_heads == 2


def test_the_diffusers_layout(tiny_diffusers_checkpoint: Path, tiny_checkpoint: Path) -> None:
    manifest = identify(tiny_diffusers_checkpoint, "fl2va")
    assert (manifest.layout, manifest.partition) == ("diffusers", "FL2VA")
    assert manifest.tasks == ("t2va", "fl2va")
    assert (manifest.video_flow_shift, manifest.audio_flow_shift) == (12.0, 3.0)
    assert manifest.dit_config == identify(tiny_checkpoint, "fl2va").dit_config
    other = identify(tiny_diffusers_checkpoint, "ref2va")
    assert (other.partition, other.tasks) == ("Ref2VA", ("ref2va",))
    assert other.weights["transformer"].folder.name == "transformer_ref"


def test_a_diffusers_root_without_the_other_transformer(
    tiny_diffusers_checkpoint: Path, tmp_path: Path
) -> None:
    root = tmp_path / "copy"
    shutil.copytree(tiny_diffusers_checkpoint, root)
    shutil.rmtree(root / "transformer_ref")
    assert identify(root, "fl2va").partition == "FL2VA"
    for task_type in ("ref2va", "combined"):
        with pytest.raises(CheckpointError, match=r"transformer_ref/config\.json: missing"):
            identify(root, task_type)


def test_a_diffusers_class_must_fit(tiny_diffusers_checkpoint: Path, tmp_path: Path) -> None:
    root = tmp_path / "copy"
    shutil.copytree(tiny_diffusers_checkpoint, root)
    path = root / "vae" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "_class_name": "AutoencoderKL"}))
    with pytest.raises(CheckpointError, match="legal: AutoencoderKLMiniMaxH3"):
        identify(root, "fl2va")


def test_the_other_partition_is_refused(editable) -> None:
    with pytest.raises(CheckpointError, match="holds partition FL2VA; task_type 'ref2va' needs"):
        identify(editable.root, "ref2va")


def test_metadata_decides_not_the_folder_name(editable) -> None:
    editable.edit_json("model_index.json", lambda index: _release(index, partition="ref2va"))
    with pytest.raises(CheckpointError, match="holds partition Ref2VA"):
        identify(editable.root.parent, "fl2va")
    assert identify(editable.root.parent, "ref2va").partition == "Ref2VA"


def test_two_folders_with_one_partition_are_refused(editable) -> None:
    shutil.copytree(editable.root, editable.root.parent / "copy")
    with pytest.raises(CheckpointError, match="FL2VA and copy both hold partition FL2VA"):
        identify(editable.root.parent, "fl2va")


def test_combined_needs_both_partitions(editable) -> None:
    with pytest.raises(CheckpointError, match="needs Ref2VA"):
        identify(editable.root.parent, "combined")
    other = editable.root.parent / "Ref2VA"
    shutil.copytree(editable.root, other)
    index = json.loads((other / "model_index.json").read_text())
    _release(index, partition="ref2va", tasks=["ref2va"])
    (other / "model_index.json").write_text(json.dumps(index))
    both = identify(editable.root.parent, "combined")
    assert both.partition == "FL2VA"
    assert both.tasks == ("t2va", "fl2va", "ref2va")
    _release(index, sigma_shift_scales={"video": 10, "audio": 3})
    (other / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"video_flow_shift 10\.0 differs from 12\.0"):
        identify(editable.root.parent, "combined")


@pytest.mark.parametrize("component", ["text_encoder", "video_vae", "audio_vae"])
def test_combined_refuses_partitions_that_share_nothing(
    editable, tiny_checkpoint: Path, component: str
) -> None:
    shutil.copytree(tiny_checkpoint / "Ref2VA", editable.root.parent / "Ref2VA")
    assert identify(editable.root.parent, "combined").tasks == ("t2va", "fl2va", "ref2va")
    editable.edit(component, lambda tensors: next(iter(tensors.values())).add_(1))
    with pytest.raises(CheckpointError, match=f"{component}.*: other weights than"):
        identify(editable.root.parent, "combined")


def test_official_weights_win_beside_a_diffusers_root(
    editable, tiny_diffusers_checkpoint: Path
) -> None:
    shutil.copytree(tiny_diffusers_checkpoint, editable.root.parent, dirs_exist_ok=True)
    assert identify(editable.root.parent, "fl2va").layout == "official"
    shutil.rmtree(editable.root)
    assert identify(editable.root.parent, "fl2va").layout == "diffusers"


@pytest.mark.parametrize("name", REQUIRED)
def test_everything_that_is_missing_is_named(editable, name: str) -> None:
    path = editable.root / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    with pytest.raises(CheckpointError, match=path.name.split("-")[0]):
        identify(editable.root, "fl2va")


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint here"):
        identify(tmp_path, "fl2va")
    with pytest.raises(CheckpointError, match="no such folder; legal: a checkpoint's folder"):
        identify(tmp_path / "absent", "fl2va")
    with pytest.raises(CheckpointError, match="task_type: 't2v' is not legal"):
        identify(tmp_path, "t2v")


def test_absent_shifts_are_defaulted_and_reported(editable) -> None:
    editable.edit_json("model_index.json", lambda index: _release(index, sigma_shift_scales={}))
    manifest = identify(editable.root, "fl2va")
    assert (manifest.video_flow_shift, manifest.audio_flow_shift) == (12.0, 3.0)
    assert manifest.defaulted_shifts == ("video", "audio")


def test_stated_shifts_are_taken(editable) -> None:
    stated = {"video": 10, "audio": 3.5}
    editable.edit_json("model_index.json", lambda index: _release(index, sigma_shift_scales=stated))
    manifest = identify(editable.root, "fl2va")
    assert (manifest.video_flow_shift, manifest.audio_flow_shift) == (10.0, 3.5)


@pytest.mark.parametrize("shift", [0, -1, "12", True, [12]])
def test_bad_shifts_are_refused(editable, shift: object) -> None:
    editable.edit_json(
        "model_index.json", lambda index: _release(index, sigma_shift_scales={"video": shift})
    )
    with pytest.raises(CheckpointError, match="video sigma shift"):
        identify(editable.root, "fl2va")


def test_diffusers_shifts(tiny_diffusers_checkpoint: Path, tmp_path: Path) -> None:
    root = tmp_path / "copy"
    shutil.copytree(tiny_diffusers_checkpoint, root)
    (root / "scheduler" / "scheduler_config.json").write_text('{"shift": 6.0}')
    shutil.rmtree(root / "audio_scheduler")
    manifest = identify(root, "fl2va")
    assert (manifest.video_flow_shift, manifest.audio_flow_shift) == (6.0, 3.0)
    assert manifest.defaulted_shifts == ("audio",)


def test_a_distilled_schedule_is_reported(editable) -> None:
    positions = [1.0, 0.7, 0.4, 0.15, 0.0]
    editable.edit_json("model_index.json", lambda index: _release(index, base_schedule=positions))
    assert identify(editable.root, "fl2va").base_schedule == tuple(positions)
    editable.edit_json("model_index.json", lambda index: _release(index, base_schedule=[1, 1]))
    with pytest.raises(CheckpointError, match="base_schedule"):
        identify(editable.root, "fl2va")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"partition": "base"}, "partition 'base'"),
        ({"schema_version": 2}, "schema_version 2"),
        ({"tasks": []}, "tasks is absent or empty"),
        ({"sigma_shift_scales": 12}, "sigma_shift_scales is not an object"),
    ],
)
def test_bad_metadata_is_refused(editable, change: dict[str, object], named: str) -> None:
    editable.edit_json("model_index.json", lambda index: _release(index, **change))
    with pytest.raises(CheckpointError, match=named):
        identify(editable.root, "fl2va")


@pytest.mark.parametrize("name", ["../source", "", None])
def test_the_video_source_stays_inside_its_folder(editable, name: str | None) -> None:
    editable.edit_json("video_vae/config.json", lambda config: config.update(source_path=name))
    with pytest.raises(CheckpointError, match="source_path"):
        identify(editable.root, "fl2va")


def test_text_width_must_fit_the_transformer(editable) -> None:
    editable.edit_json(
        "text_encoder/config.json", lambda config: config["text_config"].update(hidden_size=99)
    )
    with pytest.raises(CheckpointError, match="hidden_size 99 differs from the transformer's"):
        identify(editable.root, "fl2va")


def test_broken_json_is_named(editable) -> None:
    (editable.root / "audio_vae" / "metadata.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"metadata\.json: not readable as JSON"):
        identify(editable.root, "fl2va")


def test_the_digest_follows_the_content(editable, tiny_checkpoint: Path) -> None:
    before = identify(tiny_checkpoint, "fl2va").digest
    assert identify(editable.root, "fl2va").digest == before
    editable.edit("transformer", lambda tensors: None)
    rewritten = identify(editable.root, "fl2va").digest
    editable.edit("transformer", lambda tensors: tensors["blocks.1.norm2.weight"].add_(1))
    changed = identify(editable.root, "fl2va").digest
    assert len({before, rewritten, changed}) == 3
    editable.edit_json(
        "model_index.json", lambda index: _release(index, sigma_shift_scales={"video": 6})
    )
    assert identify(editable.root, "fl2va").digest != changed


def test_reading_a_manifest_needs_no_torch(tiny_checkpoint: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from minimax_h3.weights.manifest import identify\n"
        "from minimax_h3.weights.vae_config import video_vae_arguments\n"
        "from minimax_h3.text.tokenizer import load_tokenizer\n"
        "from minimax_h3.text.presentation import present_request\n"
        f"manifest = identify(Path({str(tiny_checkpoint)!r}), 'fl2va')\n"
        "video_vae_arguments(manifest)\n"
        "assert len(present_request('cat', (), load_tokenizer(manifest.tokenizer))[0]) == 3\n"
        "heavy = {'torch', 'transformers', 'diffusers'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def _release(index: dict, **changes: object) -> None:
    index["_minimax_h3"].update(changes)
