"""Qwen3-VL cut to the layers that the transformer reads: 50 decoder layers and no final norm.

Source: model sheet section 5.
"""

import copy
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from minimax_h3.core.constants import TEXT_ENCODER_LAYERS
from minimax_h3.core.errors import CheckpointError, InvalidRequestError
from minimax_h3.weights.key_maps import text_encoder_from_stock
from minimax_h3.weights.loader import build_on_meta, load_weights
from minimax_h3.weights.manifest import CheckpointManifest

_LOG = logging.getLogger(__name__)
_CONFIG_KEYS = ("text_config", "vision_config")


class TruncatedQwen3VL(nn.Module):
    """The residual stream after 50 decoder layers, before any norm."""

    def __init__(self, config: Qwen3VLConfig) -> None:
        super().__init__()
        self.model = Qwen3VLForConditionalGeneration(_cut(config)).model
        self.model.language_model.norm = nn.Identity()
        self.vocabulary = int(config.text_config.vocab_size)
        self.image_pad, self.video_pad = int(config.image_token_id), int(config.video_token_id)

    @classmethod
    def load(
        cls,
        manifest: CheckpointManifest,
        device: torch.device,
        dtype: torch.dtype,
    ) -> "TruncatedQwen3VL":
        """Load the layers that are read; the rest of the checkpoint is checked by its headers.

        Args:
            manifest: the checkpoint.
            device: where the weights go.
            dtype: of weights and computation.

        Raises:
            CheckpointError: fewer than 50 layers, or tensors missing, extra or misshaped.
        """
        config = _read_config(manifest)
        encoder = build_on_meta(lambda: cls(config))
        stock = build_on_meta(lambda: Qwen3VLForConditionalGeneration(config))
        ours = encoder.model.state_dict()
        every = {**stock.model.state_dict(), "lm_head.weight": stock.lm_head.weight}
        unused = {name: tensor for name, tensor in every.items() if name not in ours}
        report = load_weights(
            encoder.model,
            manifest.weights["text_encoder"],
            text_encoder_from_stock(),
            device=device,
            dtype_of=lambda name: dtype,
            unused=unused,
            optional=_optional(config),
        )
        _LOG.info("text encoder: %s, %d tensors left in the file", report, len(unused))
        return encoder.eval()

    @torch.inference_mode()
    def encode(
        self, token_ids: NDArray[np.int64], vision: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """Encode one presentation.

        Args:
            token_ids: int64 [L] or [1, L].
            vision: from `text.vision_inputs`, when the presentation has vision blocks.

        Returns:
            Features [L, width] in the dtype and on the device of the weights.

        Raises:
            InvalidRequestError: no tokens, or an id outside the vocabulary.
        """
        ids = torch.from_numpy(np.asarray(token_ids, dtype=np.int64).reshape(1, -1).copy())
        if not ids.numel() or int(ids.min()) < 0 or int(ids.max()) >= self.vocabulary:
            raise InvalidRequestError(
                f"token_ids: {ids.numel()} ids are not legal; legal: at least one, each from 0 to "
                f"{self.vocabulary - 1}"
            )
        ids = ids.to(self.model.language_model.embed_tokens.weight.device)
        if vision is None:
            states = self.model.language_model(input_ids=ids, use_cache=False)
        else:
            states = self.model(input_ids=ids, use_cache=False, **vision)
        features: Tensor = states.last_hidden_state[0]
        return features


def _read_config(manifest: CheckpointManifest) -> Qwen3VLConfig:
    where = manifest.weights["text_encoder"].folder / "config.json"
    raw: dict[str, Any] = dict(manifest.configs["text_encoder"])
    if raw.get("model_type") != "qwen3_vl":
        raise CheckpointError(
            f"{where}: model_type {raw.get('model_type')!r} is not legal; legal: qwen3_vl"
        )
    for key in _CONFIG_KEYS:
        if not isinstance(raw.get(key), dict):
            raise CheckpointError(f"{where}: missing key {key}")
    layers = raw["text_config"].get("num_hidden_layers")
    if not isinstance(layers, int) or layers < TEXT_ENCODER_LAYERS:
        raise CheckpointError(
            f"{where}: text_config.num_hidden_layers {layers!r} is not legal; legal: "
            f"{TEXT_ENCODER_LAYERS} or more, because the transformer reads hidden state "
            f"{TEXT_ENCODER_LAYERS}"
        )
    return Qwen3VLConfig(**raw)


def _cut(config: Qwen3VLConfig) -> Qwen3VLConfig:
    cut = copy.deepcopy(config)
    cut.text_config.num_hidden_layers = TEXT_ENCODER_LAYERS
    return cut


def _optional(config: Qwen3VLConfig) -> frozenset[str]:
    """Tensors that some files leave out: the head when tied, norm and head of a cut stack."""
    if config.text_config.num_hidden_layers == TEXT_ENCODER_LAYERS:
        return frozenset({"language_model.norm.weight", "lm_head.weight"})
    return frozenset({"lm_head.weight"} if config.tie_word_embeddings else ())
