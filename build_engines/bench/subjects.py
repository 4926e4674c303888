"""The same transformer twice: ours, and diffusers' on the same weights."""

from collections.abc import Mapping
from typing import Any, cast

import torch

from minimax_h3.attention.base import AttentionBackend
from minimax_h3.core.constants import Modality
from minimax_h3.dit.block import Block, Documents, ModulatedNorm
from minimax_h3.dit.dummy import outlier_channels
from minimax_h3.dit.model import MiniMaxH3Transformer, PreparedSequence
from minimax_h3.ops.row_ops import RowOps
from minimax_h3.packing.layout import PackedLayout
from minimax_h3.packing.row_times import RowTimes, class_times, row_times
from minimax_h3.weights.key_maps import dit_from_diffusers


def weights_of(model: MiniMaxH3Transformer) -> dict[str, torch.Tensor]:
    """All weights by our names; projections that are drawn when read are drawn here."""
    weights = dict(model.state_dict())
    for index, block in enumerate(model.blocks):
        adaln = cast("Block", block).adaln
        for leaf in ("weight", "bias"):
            weights[f"blocks.{index}.adaln.{leaf}"] = getattr(adaln, leaf)
    return weights


def diffusers_transformer(model: MiniMaxH3Transformer) -> Any:
    """Diffusers' transformer; it shares the storage of every weight that both keep alike."""
    from diffusers import MiniMaxH3Transformer3DModel

    with torch.device("meta"):
        theirs = MiniMaxH3Transformer3DModel(**model.config.to_diffusers())
    state: Mapping[str, torch.Tensor] = dit_from_diffusers().from_ours(weights_of(model))
    theirs.load_state_dict(state, strict=True, assign=True)
    rope = type(theirs.rope)(model.config.rope_freqs, model.config.rope_theta)
    theirs.rope = rope.to(model.device)  # its buffer is computed, not loaded
    return theirs.eval().requires_grad_(False)


class BlockSubject:
    """One block at one size, with everything that a step hands to it.

    Args:
        model: with one block or more; the first is run.
        layout: the packed sequence.
        hidden: [S, hidden], the stream in front of the block; copied for every run.
    """

    def __init__(
        self, model: MiniMaxH3Transformer, layout: PackedLayout, hidden: torch.Tensor
    ) -> None:
        self.model = model
        self.hidden = hidden
        self.times: RowTimes = row_times(layout, class_times(0.3, 0.6))
        every = torch.arange(self.times.times.numel(), device=model.device)
        self.tables = model.modulation(self.times.times).at(every).blocks[0]
        self._layout = layout

    def prepared(self, attention: AttentionBackend, ops: RowOps) -> PreparedSequence:
        """Rotary table, indices and documents."""
        text = torch.zeros(1, self.model.config.text_dim)
        layout = self._layout
        bounds = (0, layout.num_rows)
        rows = layout.stream_rows(Modality.TEXT)
        return self.model.prepare(
            text.expand(rows, -1), layout, self.times.index, bounds, attention, ops
        )

    def run(self, prepared: PreparedSequence, hidden: torch.Tensor) -> torch.Tensor:
        """The whole block, its first norm included; returns the stream, `hidden` updated."""
        block = cast("Block", self.model.blocks[0])
        documents = prepared.documents
        entry = block.entry(self.tables)
        normed = documents.row_ops.norm_modulate(hidden, *entry, prepared.adaln_rows)
        return self._block(block, hidden, normed, prepared, None)

    def step(
        self, prepared: PreparedSequence, hidden: torch.Tensor, normed: torch.Tensor
    ) -> torch.Tensor:
        """The block as it runs inside the stack: normed rows in, normed rows out."""
        block = cast("Block", self.model.blocks[0])
        return self._block(block, hidden, normed, prepared, block.entry(self.tables))

    def _block(
        self,
        block: Block,
        hidden: torch.Tensor,
        normed: torch.Tensor,
        prepared: PreparedSequence,
        following: ModulatedNorm | None,
    ) -> torch.Tensor:
        documents: Documents = prepared.documents
        out: torch.Tensor = block(
            hidden,
            normed,
            self.tables,
            prepared.adaln_rows,
            prepared.rotary,
            documents,
            following,
        )
        return out

    def diffusers_arguments(self, theirs: Any, prepared: PreparedSequence) -> tuple[Any, ...]:
        """What diffusers' block takes behind its hidden states."""
        times = self.times.times.to(self.model.device)
        embedding = theirs.time_embedder(theirs.time_proj(times))
        rotary = theirs.rope(self._layout.positions.to(self.model.device))
        return embedding, prepared.adaln_rows, rotary


def random_stream(rows: int, like: MiniMaxH3Transformer, outlier: float = 500.0) -> torch.Tensor:
    """A residual stream as deep blocks see it: a few huge channels and a few huge rows."""
    hidden = torch.randn(rows, like.config.hidden_size, device=like.device, dtype=torch.float32)
    hidden[:, outlier_channels(like.config.hidden_size)] = outlier
    hidden[:: max(1, rows // 5)] *= 20
    return hidden.to(like.dtype)
