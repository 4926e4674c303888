"""Loads one partition's transformer from either checkpoint layout."""

import logging

import torch

from minimax_h3.dit.adaln import is_block_projection, pin_block_projections_
from minimax_h3.dit.dummy import dummy_transformer
from minimax_h3.dit.model import FP32_MODULES, MiniMaxH3Transformer
from minimax_h3.weights.key_maps import dit_keys
from minimax_h3.weights.loader import build_on_meta, load_weights
from minimax_h3.weights.manifest import CheckpointManifest

_LOG = logging.getLogger(__name__)


def load_transformer(
    manifest: CheckpointManifest,
    device: torch.device,
    dtype: torch.dtype,
    *,
    adaln_on_host: bool = False,
) -> MiniMaxH3Transformer:
    """Load the transformer that `manifest` names.

    Args:
        manifest: the checkpoint; its partition decides which weights these are.
        device: where the weights go.
        dtype: of all weights outside `FP32_MODULES`, which stay fp32. Source: model sheet 1.8.
        adaln_on_host: leave the blocks' AdaLN projections, 40 % of the weights, in pinned host
            memory; they visit the device once for each schedule. Dummy ones lie nowhere and are
            drawn anew for each schedule.

    Raises:
        CheckpointError: tensors are missing, extra or misshaped; each is named.
    """
    files = manifest.weights["transformer"]
    if files.drawn is not None:
        _LOG.warning("transformer %s: dummy weights, drawn on %s", manifest.partition, device)
        return dummy_transformer(
            manifest.dit_config, device, dtype, resident_adaln=not adaln_on_host
        )
    model = build_on_meta(lambda: MiniMaxH3Transformer(manifest.dit_config, dtype))
    report = load_weights(
        model,
        files,
        dit_keys(manifest),
        device=device,
        on_host=is_block_projection if adaln_on_host else None,
        dtype_of=lambda name: torch.float32 if name.split(".")[0] in FP32_MODULES else dtype,
    )
    if adaln_on_host and device.type == "cuda":
        pin_block_projections_(model)
    _LOG.info("transformer %s from the %s layout: %s", manifest.partition, manifest.layout, report)
    return model
