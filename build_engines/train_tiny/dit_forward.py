"""The transformer's forward for training: the same numbers out of place, on a batch of documents.

The served forward changes rows in place and keeps documents apart by bounds. Here every document is
one row of a dense batch: [conditions | sound | video | text], with the fill behind a short caption
at the end, hidden from attention. Attention does not care about places, only about positions; so
the velocities are those of the packed sequence, where the text comes first.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from build_engines.train_tiny.dit_ops import PLAIN, Bounds, DitOps, rms
from minimax_h3.core.constants import Modality
from minimax_h3.dit.adaln import BLOCK_PARTS, FINAL_PARTS
from minimax_h3.dit.model import MiniMaxH3Transformer
from minimax_h3.ops.rope import rotary_table
from minimax_h3.packing.layout import TimeClass

LOOKUPS = len(TimeClass) * len(Modality)
_STEP_PARTS = 3  # gate of a branch, shift and scale of the norm behind it


class Place(NamedTuple):
    """Media rows that lie together behind the text: their stream, first row in it, count."""

    stream: Modality
    first: int
    rows: int


class Rows(NamedTuple):
    """What a batch is, whatever its noise.

    Attributes:
        places: media rows in packed order, the same in all documents.
        text_held: bool [B, L], rows of the caption.
        positions: fp32 [B, S, 3].
        lookup: int64 [B, S], `3 * time class + modality tag`.
    """

    places: tuple[Place, ...]
    text_held: Tensor
    positions: Tensor
    lookup: Tensor


def velocities(
    model: MiniMaxH3Transformer,
    rows: Rows,
    text: Tensor,
    streams: dict[Modality, Tensor],
    times: Tensor,
    ops: DitOps = PLAIN,
) -> dict[Modality, Tensor]:
    """Data-ward velocities of all media rows.

    Args:
        model: its parameters take gradients.
        rows: of the batch.
        text: [B, L, text_dim] features.
        streams: fp32 [B, V, 96] and [B, A, 32], conditions included.
        times: fp32 [B, 4], the time of each `TimeClass` in each document.
        ops: what computes between matrix products.

    Returns:
        fp32, the shapes of `streams`.
    """
    module: Any = model
    refined = _refine(module, text, Bounds.of(rows.text_held))
    with torch.autocast(text.device.type, enabled=False):
        projected = {
            Modality.VIDEO: module.video_in(streams[Modality.VIDEO]),
            Modality.AUDIO: module.audio_in(streams[Modality.AUDIO]),
        }
        embedding = F.silu(module.time_embedder(times.flatten()))
    pieces = [projected[p.stream][:, p.first : p.first + p.rows] for p in rows.places]
    hidden = torch.cat([*pieces, refined], dim=1)
    normed = _run_blocks(module, hidden, rows, embedding.view(*times.shape, -1), ops)
    return _heads(module, normed, rows)


def _run_blocks(module: Any, hidden: Tensor, rows: Rows, embedding: Tensor, ops: DitOps) -> Tensor:
    """All blocks and the output norm."""
    length = rows.text_held.shape[1]
    lookup, positions = (_text_last(each, length) for each in (rows.lookup, rows.positions))
    cosines, sines = (
        part.view(*lookup.shape, 1, -1)
        for part in rotary_table(
            positions.flatten(0, 1), module.config.rope_freqs, module.config.rope_theta
        )
    )
    media = rows.text_held.new_ones(len(lookup), lookup.shape[1] - length)
    bounds = Bounds.of(torch.cat((media, rows.text_held), dim=1))
    entry, *tables = _tables(module, embedding, hidden.shape[-1])
    dtype, first = entry.dtype, module.blocks[0].norm1
    normed = ops.modulated(hidden, lookup, entry, first.weight, first.eps, dtype)
    following = [block.norm1 for block in module.blocks[1:]] + [module.final.norm]
    for index, (block, norm) in enumerate(zip(module.blocks, following, strict=True)):
        branch = _attention(block.attn, normed, bounds, (cosines, sines), ops)
        middle, end = tables[2 * index : 2 * index + 2]
        hidden, normed = ops.advanced(
            hidden, branch, lookup, middle, block.norm2.weight, block.norm2.eps, dtype
        )
        branch = _feed_forward(block.mlp, normed, ops)
        if norm is module.final.norm:
            dtype = torch.float32  # the heads' products
        hidden, normed = ops.advanced(hidden, branch, lookup, end, norm.weight, norm.eps, dtype)
    return normed


def _text_last(rows: Tensor, length: int) -> Tensor:
    """Packed rows [B, S, ...] with the text behind the media."""
    return torch.cat((rows[:, length:], rows[:, :length]), dim=1)


def _tables(module: Any, embedding: Tensor, width: int) -> tuple[Tensor, ...]:
    """Modulation in the order of use: shift and scale of the entry, then parts of each branch.

    Args:
        module: the transformer.
        embedding: fp32 [B, 4, time_out_dim].
        width: of the stream, C.

    Returns:
        [B, 12, 2 C], and [B, 12, 3 C] for each branch. The output norm, which closes the last one,
        looks up by time alone: its rows are the same for all modalities.
    """
    size = (len(embedding), LOOKUPS, BLOCK_PARTS * width)
    parts = [block.adaln(embedding).view(size) for block in module.blocks]
    parts.append(module.final.adaln(embedding).repeat_interleave(len(Modality), dim=1))
    branches = 2 * len(module.blocks)
    sizes = [FINAL_PARTS * width] + [_STEP_PARTS * width] * branches
    return torch.split(torch.cat(parts, dim=-1), sizes, dim=-1)


def _refine(module: Any, text: Tensor, bounds: Bounds) -> Tensor:
    """The text's refiner; its rows are few, and plain operations do."""
    hidden = module.text_in(text).float()
    for block in module.refiner.blocks:
        normed = rms(hidden, block.norm1.weight, block.norm1.eps)
        hidden = hidden + _attention(block.attn, normed, bounds, None, PLAIN)
        normed = rms(hidden, block.norm2.weight, block.norm2.eps)
        hidden = hidden + _feed_forward(block.mlp, normed, PLAIN)
    return rms(hidden, module.refiner.final_norm.weight, module.refiner.final_norm.eps)


def _heads(module: Any, normed: Tensor, rows: Rows) -> dict[Modality, Tensor]:
    """Both heads in fp32."""
    sizes = [place.rows for place in rows.places] + [rows.text_held.shape[1]]
    pieces = list(zip(rows.places, torch.split(normed, sizes, dim=1)[:-1], strict=True))
    with torch.autocast(normed.device.type, enabled=False):
        return {
            stream: head(torch.cat([piece for place, piece in pieces if place.stream is stream], 1))
            for stream, head in (
                (Modality.VIDEO, module.video_out),
                (Modality.AUDIO, module.audio_out),
            )
        }


def _attention(
    attention: Any,
    normed: Tensor,
    bounds: Bounds,
    turns: tuple[Tensor, Tensor] | None,
    ops: DitOps,
) -> Tensor:
    cosines, sines = turns or (normed.new_empty(*normed.shape[:2], 1, 0),) * 2
    norms = attention.q_norm.weight, attention.k_norm.weight, attention.q_norm.eps
    query, key, value = ops.heads(attention.qkv(normed), cosines, sines, *norms)
    out: Tensor = attention.out(ops.attention(query, key, value, bounds).flatten(2))
    return out


def _feed_forward(mlp: Any, normed: Tensor, ops: DitOps) -> Tensor:
    out: Tensor = mlp.fc2(ops.swiglu(mlp.fc1(normed)))
    return out
