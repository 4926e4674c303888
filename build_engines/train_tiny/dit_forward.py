"""The transformer's forward for training: the same numbers out of place, on a batch of documents.

The served forward changes rows in place and keeps documents apart by bounds. Here every document is
one row of a dense batch: [text | conditions | sound | video], with the fill behind a short caption
between text and media, hidden from attention. Row order is the packed order, and attention does not
care about places, only about positions; so the velocities are those of the packed sequence. Tables
are looked up by products with one-hot rows, whose backward needs no atomics.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from minimax_h3.core.constants import Modality
from minimax_h3.dit.adaln import BLOCK_PARTS
from minimax_h3.dit.model import MiniMaxH3Transformer
from minimax_h3.ops.rope import rotary_table
from minimax_h3.packing.layout import TimeClass

LOOKUPS = len(TimeClass) * len(Modality)


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
) -> dict[Modality, Tensor]:
    """Data-ward velocities of all media rows.

    Args:
        model: its parameters take gradients.
        rows: of the batch.
        text: [B, L, text_dim] features.
        streams: fp32 [B, V, 96] and [B, A, 32], conditions included.
        times: fp32 [B, 4], the time of each `TimeClass` in each document.

    Returns:
        fp32, the shapes of `streams`.
    """
    module: Any = model
    refined = _refine(module, text, rows.text_held)
    with torch.autocast(text.device.type, enabled=False):
        projected = {
            Modality.VIDEO: module.video_in(streams[Modality.VIDEO]),
            Modality.AUDIO: module.audio_in(streams[Modality.AUDIO]),
        }
        embedding = F.silu(module.time_embedder(times.flatten()))
    pieces = [projected[p.stream][:, p.first : p.first + p.rows] for p in rows.places]
    hidden = torch.cat([refined.float(), *pieces], dim=1)
    hidden = _run_blocks(module, hidden, rows, embedding.view(*times.shape, -1))
    return _heads(module, hidden, rows, embedding.view(*times.shape, -1))


def _run_blocks(module: Any, hidden: Tensor, rows: Rows, embedding: Tensor) -> Tensor:
    chosen = one_hot(rows.lookup, LOOKUPS)
    table = rotary_table(
        rows.positions.flatten(0, 1), module.config.rope_freqs, module.config.rope_theta
    )
    turns = tuple(part.view(*rows.positions.shape[:2], 1, -1) for part in table)
    visible = torch.cat((rows.text_held, rows.text_held.new_ones(rows_behind(rows))), dim=1)
    mask = visible[:, None, None]
    for block in module.blocks:
        tables = block.adaln(embedding).view(len(hidden), LOOKUPS, BLOCK_PARTS * hidden.shape[-1])
        parts = torch.bmm(chosen, tables).chunk(BLOCK_PARTS, dim=-1)
        normed = _norm(hidden, block.norm1)
        branch = _attention(block.attn, normed + normed * parts[1] + parts[0], mask, turns)
        hidden = hidden + parts[2] * branch
        normed = _norm(hidden, block.norm2)
        branch = _feed_forward(block.mlp, normed + normed * parts[4] + parts[3])
        hidden = hidden + parts[5] * branch
    return hidden


def one_hot(places: Tensor, count: int) -> Tensor:
    """fp32 [..., count]; a lookup becomes a product."""
    return (places[..., None] == torch.arange(count, device=places.device)).float()


def rows_behind(rows: Rows) -> tuple[int, int]:
    """Documents, and media rows of each."""
    return len(rows.text_held), sum(place.rows for place in rows.places)


def _refine(module: Any, text: Tensor, held: Tensor) -> Tensor:
    hidden = module.text_in(text).float()
    for block in module.refiner.blocks:
        normed = _norm(hidden, block.norm1)
        hidden = hidden + _attention(block.attn, normed, held[:, None, None], None)
        hidden = hidden + _feed_forward(block.mlp, _norm(hidden, block.norm2))
    return _norm(hidden, module.refiner.final_norm)


def _heads(module: Any, hidden: Tensor, rows: Rows, embedding: Tensor) -> dict[Modality, Tensor]:
    """The output norm, which looks up by time alone, and both heads in fp32."""
    shift, scale = module.final.adaln(embedding).chunk(2, dim=-1)
    chosen = one_hot(rows.lookup // len(Modality), len(TimeClass))
    normed = _norm(hidden, module.final.norm)
    normed = normed + normed * torch.bmm(chosen, scale) + torch.bmm(chosen, shift)
    start, pieces = rows.text_held.shape[1], []
    for place in rows.places:
        pieces.append((place, normed[:, start : start + place.rows]))
        start += place.rows
    with torch.autocast(hidden.device.type, enabled=False):
        return {
            stream: head(torch.cat([piece for place, piece in pieces if place.stream is stream], 1))
            for stream, head in (
                (Modality.VIDEO, module.video_out),
                (Modality.AUDIO, module.audio_out),
            )
        }


def _norm(rows: Tensor, norm: Any) -> Tensor:
    return F.rms_norm(rows.float(), norm.normalized_shape, norm.weight, norm.eps)


def _attention(
    attention: Any, normed: Tensor, mask: Tensor, turns: tuple[Tensor, ...] | None
) -> Tensor:
    q, k, v = attention.qkv(normed).unflatten(-1, attention.heads).unbind(2)
    q, k = _norm(q, attention.q_norm), _norm(k, attention.k_norm)
    if turns is not None:
        q, k = _turned(q, *turns), _turned(k, *turns)
    q, k = q.to(v.dtype), k.to(v.dtype)
    attended = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask
    )
    out: Tensor = attention.out(attended.transpose(1, 2).flatten(2))
    return out


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    width = cos.shape[-1]
    turning, rest = heads[..., :width], heads[..., width:]
    first, second = turning.chunk(2, dim=-1)
    return torch.cat((turning * cos + torch.cat((second, first), dim=-1) * sin, rest), dim=-1)


def _feed_forward(mlp: Any, normed: Tensor) -> Tensor:
    gate, value = mlp.fc1(normed).chunk(2, dim=-1)
    out: Tensor = mlp.fc2(F.silu(gate) * value)
    return out
