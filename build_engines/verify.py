"""Loads every component of a checkpoint strictly and says what it found."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

from build_engines.autoencoders import audio_autoencoder, video_autoencoder
from minimax_h3.core.errors import CheckpointError
from minimax_h3.dit.loading import load_transformer
from minimax_h3.text.qwen import TruncatedQwen3VL
from minimax_h3.text.tokenizer import load_tokenizer
from minimax_h3.weights.key_maps import KeyMap, unchanged, video_vae_keys
from minimax_h3.weights.loader import load_weights
from minimax_h3.weights.manifest import WEIGHTED, CheckpointManifest, identify
from minimax_h3.weights.vae_config import audio_vae_arguments, video_vae_arguments

_CPU = torch.device("cpu")
_COLUMNS = "{:<14} {:>8} {:>16} {:>16}  {}"


def verify(path: Path, task_type: str) -> Iterator[str]:
    """Load one component after another; yields the lines of a table.

    Raises:
        CheckpointError: a component is incomplete, contradicts its configuration, or holds values
            that are not finite.
    """
    manifest = identify(path, task_type)
    yield f"{manifest.layout} layout, partition {manifest.partition}, {manifest.root}"
    defaulted = ", ".join(manifest.defaulted_shifts) or "none"
    yield (
        f"tasks {', '.join(manifest.tasks)}; sigma shifts {manifest.video_flow_shift:g} and "
        f"{manifest.audio_flow_shift:g} (not stated by the checkpoint: {defaulted})"
    )
    load_tokenizer(manifest.tokenizer)
    yield _COLUMNS.format("component", "tensors", "parameters", "bytes", "dtypes")
    for component in WEIGHTED:
        module = _LOADERS[component](manifest)
        _check_finite(component, module)
        yield _describe(component, manifest)
    yield f"digest {manifest.digest}"


def _text_encoder(manifest: CheckpointManifest) -> nn.Module:
    return TruncatedQwen3VL.load(manifest, _CPU, torch.bfloat16)


def _transformer(manifest: CheckpointManifest) -> nn.Module:
    return load_transformer(manifest, _CPU, torch.bfloat16)


def _video_vae(manifest: CheckpointManifest) -> nn.Module:
    module: nn.Module = video_autoencoder(video_vae_arguments(manifest))
    return _in_fp32(module, manifest, "video_vae", video_vae_keys(manifest))


def _audio_vae(manifest: CheckpointManifest) -> nn.Module:
    module: nn.Module = audio_autoencoder(audio_vae_arguments(manifest))
    return _in_fp32(module, manifest, "audio_vae", unchanged())


def _in_fp32(
    module: nn.Module, manifest: CheckpointManifest, component: str, keys: KeyMap
) -> nn.Module:
    files = manifest.weights[component]
    load_weights(module, files, keys, device=_CPU, dtype_of=lambda name: torch.float32)
    return module


_LOADERS: dict[str, Callable[[CheckpointManifest], nn.Module]] = {
    "transformer": _transformer,
    "text_encoder": _text_encoder,
    "video_vae": _video_vae,
    "audio_vae": _audio_vae,
}


def _check_finite(component: str, module: nn.Module) -> None:
    wrong = [name for name, value in module.state_dict().items() if not value.isfinite().all()]
    if wrong:
        raise CheckpointError(
            f"{component}: {len(wrong)} tensors with values that are not finite: "
            f"{', '.join(wrong[:20])}"
        )


def _describe(component: str, manifest: CheckpointManifest) -> str:
    headers = manifest.weights[component].tensors.values()
    parameters = sum(torch.Size(header.shape).numel() for header in headers)
    payload = sum(header.end - header.begin for header in headers)
    counts = Counter(header.dtype for header in headers)
    dtypes = ", ".join(f"{count} {dtype}" for dtype, count in counts.most_common())
    return _COLUMNS.format(component, len(headers), f"{parameters:,}", f"{payload:,}", dtypes)
