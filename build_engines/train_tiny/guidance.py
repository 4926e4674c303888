"""Guidance by prompt and references, learned, so that serving needs one forward a step.

With weight g the target of a document is `u + g (v - v0)`: u its own velocity, v and v0 what the
model says now with prompt and references and without them, both as constants. Where that settles,
v is `v0 + (u - v0) / (1 - g)`: classifier-free guidance of scale 1 / (1 - g). The released model is
distilled to one forward a step too. The error of such a target is that of `(1 - g) v + g v0`
against u, so held-out clips still judge guided weights.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from build_engines.train_tiny.dit_forward import Rows
from minimax_h3.core.constants import Modality

BARE_SHARE = 0.1
"""Documents that are trained without prompt and references."""


def without_captions(rows: Rows, bare: Tensor) -> Rows:
    """Hide the captions of some documents, pictures that the text encoder saw among them.

    Args:
        rows: of a batch.
        bare: bool [B].

    Returns:
        Rows whose captions end behind the first token, which is the same in all of them: attention
        over no text at all would have no rows to run on.
    """
    first = torch.arange(rows.text_held.shape[1], device=bare.device) == 0
    return rows._replace(text_held=rows.text_held & (first | ~bare[:, None]))


def without_references(
    streams: Mapping[Modality, Tensor], held: Mapping[Modality, int], bare: Tensor
) -> dict[Modality, Tensor]:
    """Blank the condition rows of some documents.

    Args:
        streams: [B, rows, channels].
        held: condition rows at the head of each stream.
        bare: bool [B].
    """
    blanked = {}
    for stream, rows in streams.items():
        head = torch.arange(rows.shape[1], device=rows.device) < held[stream]
        blanked[stream] = rows.masked_fill((bare[:, None] & head)[..., None], 0.0)
    return blanked
