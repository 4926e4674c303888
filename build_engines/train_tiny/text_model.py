"""The text encoder in training: the working layers of Qwen3-VL on batches of equal tasks.

The layers are the library's own. Captions are filled up on the right: the attention is causal, so
what follows a caption never reaches it, and no mask is needed. The vision tower keeps its random
weights: its features are a fixed projection of the patches, made once for each picture, which the
layers behind it learn to read. All that a step runs has one shape for each kind of document.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from build_engines.train_tiny import model_configs
from minimax_h3.core.constants import VISION_MERGE, VISION_PAIR_FRAMES, VISION_PATCH_PIXELS

_MIDDLE = 0.5  # mean and deviation of the vision tower's pixels


class Seen(NamedTuple):
    """What the vision tower makes of the pictures of some documents.

    Attributes:
        features: [B, P, width], at the pads of the presentation.
        taps: [B, 3, P, width], added behind the first three layers.
    """

    features: Tensor
    taps: Tensor


class TextModel(nn.Module):
    """Working layers and vision tower; the parameters are fp32."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        config = Qwen3VLConfig(**model_configs.text_encoder(model_configs.WORKING_LAYERS))
        self.model: Any = Qwen3VLForConditionalGeneration(config).model.float()
        self.model.language_model.norm = nn.Identity()
        self.image_pad, self.video_pad = int(config.image_token_id), int(config.video_token_id)
        _spread(self.model)
        self.model.visual.requires_grad_(False)

    def forward(
        self, token_ids: Tensor, positions: Tensor, pads: Tensor, seen: Seen | None
    ) -> Tensor:
        """Encode presentations.

        Args:
            token_ids: int64 [B, L], filled up on the right.
            positions: int64 [3, B, L], rotary positions.
            pads: int64 [P], columns of `token_ids` that stand for vision features.
            seen: of the documents; None without pictures.

        Returns:
            [B, L, width], the residual stream behind the last layer.
        """
        text = self.model.language_model
        table = text.embed_tokens.weight
        # A lookup as a product, whose backward needs no atomics.
        ids = torch.arange(len(table), device=token_ids.device)
        hidden: Tensor = (token_ids[..., None] == ids).float() @ table
        if seen is not None:
            hidden = hidden.index_copy(1, pads, seen.features.to(hidden.dtype))
        turned = text.rotary_emb(hidden, positions)
        for index, layer in enumerate(text.layers):
            hidden = layer(hidden, attention_mask=None, position_embeddings=turned)
            if seen is not None and index < seen.taps.shape[1]:
                hidden = hidden.index_add(1, pads, seen.taps[:, index].to(hidden.dtype))
        return hidden

    def positions(self, token_ids: Tensor, grids: dict[str, Tensor]) -> Tensor:
        """Rotary positions of one presentation, int64 [3, L], on the CPU.

        Args:
            token_ids: int64 [L].
            grids: `image_grid_thw` and `video_grid_thw`, whichever there are.
        """
        kinds = torch.where(token_ids == self.image_pad, 1, 0)
        kinds = torch.where(token_ids == self.video_pad, 2, kinds)
        found, _ = self.model.get_rope_index(token_ids[None], kinds[None], **grids)
        return found[:, 0]

    @torch.no_grad()
    def see(self, frames: Tensor) -> Seen:
        """Features of pairs of frames; the two frames of a pair are one for a picture.

        Args:
            frames: [N, 3, 2, H, W] or [N, 3, 1, H, W] in [0, 1], sides multiples of 32.

        Returns:
            Features [N, P, width] and taps [N, 3, P, width].
        """
        count, _, _, height, width = frames.shape
        rows, columns = height // VISION_PATCH_PIXELS, width // VISION_PATCH_PIXELS
        grid = torch.tensor([[1, rows, columns]] * count, device=frames.device)
        out = self.model.visual(patches(frames).flatten(0, 1), grid_thw=grid)
        taps = torch.stack(
            [tap.view(count, -1, tap.shape[-1]) for tap in out.deepstack_features], 1
        )
        return Seen(out.pooler_output.view(count, -1, taps.shape[-1]), taps)


def patches(frames: Tensor) -> Tensor:
    """Cut frames as the vision tower reads them: 2 x 2 neighbours together, channel slowest.

    Args:
        frames: [N, 3, 1 or 2, H, W] in [0, 1].

    Returns:
        [N, patches, 1536], normalised.
    """
    size, merge = VISION_PATCH_PIXELS, VISION_MERGE
    levels = (frames * 255).round() / 255
    pairs = ((levels - _MIDDLE) / _MIDDLE).expand(-1, -1, VISION_PAIR_FRAMES, -1, -1)
    count, channels, held, height, width = pairs.shape
    cells = pairs.reshape(
        *(count, channels, held),
        *(height // (size * merge), merge, size, width // (size * merge), merge, size),
    )
    ordered = cells.permute(0, 3, 6, 4, 7, 1, 2, 5, 8)
    return ordered.reshape(count, -1, channels * held * size * size)


@torch.no_grad()
def _spread(model: Any) -> None:
    """Scales at which the stream and the vision features are of about one."""
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            continue  # norms stay 1, biases 0
        fan_in = parameter[0].numel()
        if "embed" in name and "patch_embed" not in name:
            parameter.normal_(std=1.0 if "visual" not in name else 0.5)
            continue
        parameter.normal_(std=1.0 / math.sqrt(fan_in))
        if name.endswith(("self_attn.o_proj.weight", "mlp.down_proj.weight")):
            parameter.mul_(1.0 / math.sqrt(2 * model_configs.WORKING_LAYERS))
