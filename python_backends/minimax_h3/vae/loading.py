"""The decoder and the encoder halves of both autoencoders, each filled from a checkpoint."""

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio
from torch import Tensor, nn

from minimax_h3.core.errors import CheckpointError
from minimax_h3.vae.audio_decoder import AudioDecoder
from minimax_h3.vae.audio_encoder import AudioEncoder
from minimax_h3.vae.tiling import MIN_OVERLAP_PIXELS, TILE_PIXELS
from minimax_h3.vae.video_decoder import VideoDecoder
from minimax_h3.vae.video_encoder import VideoEncoder
from minimax_h3.vae.vit_blocks import compiled_ops, replace_blocks_
from minimax_h3.weights.key_maps import KeyMap, unchanged, video_vae_keys
from minimax_h3.weights.loader import build_on_meta, load_weights
from minimax_h3.weights.manifest import CheckpointManifest
from minimax_h3.weights.vae_config import Arguments, audio_vae_arguments, video_vae_arguments

_LOG = logging.getLogger(__name__)

# The half that is not loaded is checked by name and shape, never read.
_VIDEO_ENCODER, _VIDEO_DECODER = ("encoder", "quant_conv"), ("decoder", "post_quant_conv")
_AUDIO_ENCODER = ("encoder", "pre_block", "mean_proj", "logs_proj")
_AUDIO_NOT_MEAN = ("decoder", "dec_in_proj", "logs_proj")  # a condition is the posterior's mean
_RELEASED_TILING = {"vae_tile_size": TILE_PIXELS, "vae_tile_overlap_min": MIN_OVERLAP_PIXELS}
# Norms and LayerScales keep the residual stream in fp32. Source: model sheet 4.1, "Precision".
_FP32_PARTS = frozenset({"norm1", "norm2", "norm_out", "scale1", "scale2"})


def load_video_vae(
    manifest: CheckpointManifest,
    device: torch.device,
    dtype: torch.dtype,
    tiles_per_batch: int = 1,
    blocks: str = "reference",
) -> VideoDecoder:
    """Load the video decoder.

    Args:
        manifest: from `weights.manifest.identify`.
        device: where to decode.
        dtype: of the decoder's matrices. On a CPU they are fp32 whatever is asked, and the log says
            so; norms and LayerScales are fp32 everywhere.
        tiles_per_batch: see `VideoDecoder`.
        blocks: `reference` or `compiled`, see `vae.vit_blocks`.

    Raises:
        CheckpointError: names what is missing, extra or misshaped.
    """
    decode_dtype = _decode_dtype(device, dtype)
    module, arguments = _build_video_vae(manifest)
    # Pinned, so that no attention choice made elsewhere in the process reaches the picture.
    for block in module.decoder.transformer_blocks:
        block.attn.set_attention_backend("native")
    _load(
        module,
        manifest,
        "video_vae",
        video_vae_keys(manifest),
        _VIDEO_ENCODER,
        device,
        lambda name: _dtype_of(name, decode_dtype),
    )
    if blocks == "compiled":
        replace_blocks_(module.decoder, compiled_ops())
    return VideoDecoder(module, *_statistics(arguments), device, tiles_per_batch=tiles_per_batch)


def load_video_encoder(manifest: CheckpointManifest, device: torch.device) -> VideoEncoder:
    """Load the video encoder, in fp32 on any device.

    Args:
        manifest: from `weights.manifest.identify`.
        device: where to encode.

    Raises:
        CheckpointError: names what is missing, extra or misshaped.
    """
    module, arguments = _build_video_vae(manifest)
    keys = video_vae_keys(manifest)
    _load(module, manifest, "video_vae", keys, _VIDEO_DECODER, device, _fp32)
    return VideoEncoder(module, *_statistics(arguments), device)


def load_audio_encoder(manifest: CheckpointManifest, device: torch.device) -> AudioEncoder:
    """Load the audio encoder, in fp32 on any device.

    Args:
        manifest: from `weights.manifest.identify`.
        device: where to encode.

    Raises:
        CheckpointError: names what is missing, extra or misshaped.
    """
    module, arguments = _build_audio_vae(manifest)
    module.pre_block.attn.set_attention_backend("native")
    _load(module, manifest, "audio_vae", unchanged(), _AUDIO_NOT_MEAN, device, _fp32)
    return AudioEncoder(module, *_statistics(arguments), device)


def load_audio_vae(manifest: CheckpointManifest, device: torch.device) -> AudioDecoder:
    """Load the audio decoder, in fp32 on any device.

    Args:
        manifest: from `weights.manifest.identify`.
        device: where to decode.

    Raises:
        CheckpointError: names what is missing, extra or misshaped.
    """
    module, arguments = _build_audio_vae(manifest)
    _load(module, manifest, "audio_vae", unchanged(), _AUDIO_ENCODER, device, _fp32)
    return AudioDecoder(module, *_statistics(arguments), device)


def _build_video_vae(manifest: CheckpointManifest) -> tuple[Any, Arguments]:
    arguments = video_vae_arguments(manifest)
    _check_tiles(manifest)
    return build_on_meta(lambda: AutoencoderKLMiniMaxH3(**arguments)), arguments


def _build_audio_vae(manifest: CheckpointManifest) -> tuple[Any, Arguments]:
    arguments = audio_vae_arguments(manifest)
    with warnings.catch_warnings():
        # diffusers keeps the old weight norm, because checkpoints store weight_g and weight_v.
        warnings.filterwarnings("ignore", ".torch.nn.utils.weight_norm", FutureWarning)
        return build_on_meta(lambda: AutoencoderKLMiniMaxH3Audio(**arguments)), arguments


def _check_tiles(manifest: CheckpointManifest) -> None:
    """Refuse a release that was made for other tiles; the diffusers layout states none."""
    config = manifest.configs["video_vae"]
    for key, legal in _RELEASED_TILING.items():
        if config.get(key, legal) != legal:
            raise CheckpointError(
                f"{manifest.root}: video VAE: {key} {config[key]!r} is not legal; legal: {legal}"
            )


def _decode_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    if device.type == "cpu" and dtype != torch.float32:
        _LOG.info("video VAE: %s was asked for; on a CPU it decodes in fp32", dtype)
        return torch.float32
    return dtype


def _fp32(name: str) -> torch.dtype:
    return torch.float32


def _dtype_of(name: str, decode_dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if _FP32_PARTS.intersection(name.split(".")) else decode_dtype


def _statistics(arguments: Arguments) -> tuple[Sequence[float], Sequence[float]]:
    mean, std = arguments["latents_mean"], arguments["latents_std"]
    assert isinstance(mean, Sequence)
    assert isinstance(std, Sequence)
    return mean, std


def _load(
    module: Any,
    manifest: CheckpointManifest,
    component: str,
    key_map: KeyMap,
    left_out: Sequence[str],
    device: torch.device,
    dtype_of: Callable[[str], torch.dtype],
) -> None:
    report = load_weights(
        module,
        manifest.weights[component],
        key_map,
        device=device,
        dtype_of=dtype_of,
        unused=_remove(module, left_out),
    )
    _LOG.info("%s: %s", component, report)


def _remove(module: nn.Module, parts: Sequence[str]) -> dict[str, Tensor]:
    """Take parts out of a module; returns their tensors, which are on meta."""
    removed: dict[str, Tensor] = {}
    for part in parts:
        state = module.get_submodule(part).state_dict()
        removed |= {f"{part}.{name}": tensor for name, tensor in state.items()}
        delattr(module, part)
    return removed
