"""Where the transformer's weights go when AdaLN stays on the host."""

from pathlib import Path

import pytest
import torch

from minimax_h3.dit.loading import load_transformer
from minimax_h3.weights import loader
from minimax_h3.weights.manifest import identify


@pytest.mark.parametrize("adaln_on_host", [True, False])
def test_only_the_blocks_adaln_projections_stay_on_the_host(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, adaln_on_host: bool
) -> None:
    homes: dict[str, torch.device] = {}
    plain = loader._place

    def place(module, name, value, device, dtype):  # type: ignore[no-untyped-def]  # as the real one
        homes[name] = device
        return plain(module, name, value, device, dtype)

    monkeypatch.setattr(loader, "_place", place)
    device = torch.device("cpu", 0)  # a CPU with a number stands in for a GPU
    manifest = identify(tiny_checkpoint, "fl2va")
    model = load_transformer(manifest, device, torch.float32, adaln_on_host=adaln_on_host)
    assert set(homes) == set(model.state_dict())
    hosted = {name for name, home in homes.items() if home == torch.device("cpu")}
    layers = range(manifest.dit_config.num_layers)
    adaln = {f"blocks.{i}.adaln.{leaf}" for i in layers for leaf in ("weight", "bias")}
    assert hosted == (adaln if adaln_on_host else set())
