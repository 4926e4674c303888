"""Bytes that each part of a checkpoint takes once it is served, from headers alone."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from minimax_h3.core.constants import TEXT_ENCODER_LAYERS
from minimax_h3.weights.dit_shapes import DIT_FP32_PREFIXES, transformer_shapes
from minimax_h3.weights.manifest import CheckpointManifest
from minimax_h3.weights.safetensors_files import ITEM_BYTES

_FP32 = ITEM_BYTES["F32"]
_TEXT_LAYER = re.compile(r"model\.language_model\.layers\.(\d+)\.")
_TEXT_UNREAD = ("model.language_model.norm.weight", "lm_head.weight")
_VIDEO_ENCODER = ("encoder.", "quant_conv.")
_VIDEO_NOT_SERVED = ("decoder.mask_token",)
# Norms and LayerScales stay FP32 beside the decoder's matrices. Source: model sheet 4.1.
_VIDEO_FP32 = frozenset({"norm1", "norm2", "norm_out", "scale1", "scale2"})
_AUDIO_ENCODER = ("encoder.", "pre_block.", "mean_proj.")
_AUDIO_NOT_SERVED = ("logs_proj.",)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of weights in service.

    Attributes:
        transformer: one DiT without the blocks' AdaLN projections.
        adaln: these projections, 40 % of the release.
        text_encoder: embedding, vision tower and the layers that are read.
        video_decoder, video_encoder, audio_decoder, audio_encoder: halves of the autoencoders.
    """

    transformer: int
    adaln: int
    text_encoder: int
    video_decoder: int
    video_encoder: int
    audio_decoder: int
    audio_encoder: int


def footprint(manifest: CheckpointManifest, item_bytes: int, decoder_item_bytes: int) -> Footprint:
    """Sizes of one partition's components in service.

    Args:
        manifest: the checkpoint; headers only.
        item_bytes: of a value of the DiT and the text encoder: 2 for BF16, 4 for FP32.
        decoder_item_bytes: of a value of the video decoder's matrices.
    """
    adaln = transformer = 0
    for name, shape in transformer_shapes(manifest.dit_config).items():
        size = math.prod(shape) * (_FP32 if name.startswith(DIT_FP32_PREFIXES) else item_bytes)
        if name.startswith("blocks.") and ".adaln." in name:
            adaln += size
        else:
            transformer += size
    return Footprint(
        transformer=transformer,
        adaln=adaln,
        text_encoder=_sum(manifest, "text_encoder", _is_read, lambda name: item_bytes),
        video_decoder=_sum(
            manifest,
            "video_vae",
            lambda name: not name.startswith((*_VIDEO_ENCODER, *_VIDEO_NOT_SERVED)),
            lambda name: _FP32 if _VIDEO_FP32 & {*name.split(".")} else decoder_item_bytes,
        ),
        video_encoder=_sum(
            manifest, "video_vae", lambda name: name.startswith(_VIDEO_ENCODER), lambda name: _FP32
        ),
        audio_decoder=_sum(
            manifest,
            "audio_vae",
            lambda name: not name.startswith((*_AUDIO_ENCODER, *_AUDIO_NOT_SERVED)),
            lambda name: _FP32,
        ),
        audio_encoder=_sum(
            manifest, "audio_vae", lambda name: name.startswith(_AUDIO_ENCODER), lambda name: _FP32
        ),
    )


def _is_read(name: str) -> bool:
    layer = _TEXT_LAYER.match(name)
    return name not in _TEXT_UNREAD and (layer is None or int(layer[1]) < TEXT_ENCODER_LAYERS)


def _sum(
    manifest: CheckpointManifest,
    component: str,
    served: Callable[[str], bool],
    item_bytes: Callable[[str], int],
) -> int:
    headers = manifest.weights[component].tensors
    return sum(
        header.num_values * item_bytes(name) for name, header in headers.items() if served(name)
    )
