"""A private copy of the tiny checkpoint whose tensors can be edited."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
FOLDERS = {
    "transformer": "transformer",
    "text_encoder": "text_encoder",
    "video_vae": "video_vae/source",
    "audio_vae": "audio_vae",
}


class EditableCheckpoint:
    """The partition folder `root` and ways to break it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, component: str) -> Path:
        return self.root / FOLDERS[component]

    def read(self, component: str) -> Tensors:
        files = sorted(self.folder(component).glob("*.safetensors"))
        return {name: value for file in files for name, value in load_file(file).items()}

    def write(self, component: str, tensors: Tensors) -> None:
        """Replace the component's weights by one file."""
        folder = self.folder(component)
        for path in folder.glob("*.safetensors*"):
            path.unlink()
        save_file(tensors, folder / "model.safetensors")

    def edit(self, component: str, change: Callable[[Tensors], None]) -> None:
        tensors = self.read(component)
        change(tensors)
        self.write(component, tensors)

    def edit_json(self, name: str, change: Callable[[dict], None]) -> None:
        path = self.root / name
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))


@pytest.fixture
def editable(tiny_checkpoint: Path, tmp_path: Path) -> EditableCheckpoint:
    root = tmp_path / "FL2VA"
    shutil.copytree(tiny_checkpoint / "FL2VA", root)
    return EditableCheckpoint(root)
