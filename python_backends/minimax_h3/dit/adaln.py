"""AdaLN: shift, scale and gate of every block for every (time, modality) pair.

The projections read nothing but the time, so their outputs for all times of a schedule are one
table, and a step is a lookup. Their weights are 40 % of the model and are read once per schedule.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.functional import linear, silu

from minimax_h3.core.constants import Modality

BLOCK_PARTS = 6  # shift, scale, gate of attention, then of the feed-forward
FINAL_PARTS = 2  # shift, scale


class BlockModulation(NamedTuple):
    """One block's tables at one step, each [3 K, hidden]: row `3 * time + tag`."""

    attention_shift: torch.Tensor
    attention_scale: torch.Tensor
    attention_gate: torch.Tensor
    mlp_shift: torch.Tensor
    mlp_scale: torch.Tensor
    mlp_gate: torch.Tensor


class FinalModulation(NamedTuple):
    """Tables of the output norm at one step, each [K, hidden]: one row per time, no modality."""

    shift: torch.Tensor
    scale: torch.Tensor


@dataclass(frozen=True, eq=False, slots=True)
class StepModulation:
    """What one forward looks up.

    Attributes:
        blocks: one for each block.
        final: of the output norm.
    """

    blocks: Sequence[BlockModulation]
    final: FinalModulation


@dataclass(frozen=True, eq=False, slots=True)
class ModulationTable:
    """AdaLN outputs for M times.

    Attributes:
        blocks: [layers, M, 3, 6, hidden].
        final: [M, 2, hidden].
    """

    blocks: torch.Tensor
    final: torch.Tensor

    def at(self, times: torch.Tensor) -> StepModulation:
        """Tables of one forward.

        Args:
            times: int64 [K], rows of the table; the forward's times in its own order.
        """
        # Parts in front: each is then dense, and a block's six come apart without a copy.
        blocks = self.blocks.index_select(1, times).permute(0, 3, 1, 2, 4).flatten(2, 3)
        return StepModulation(
            blocks=[BlockModulation(*block.unbind(0)) for block in blocks.unbind(0)],
            final=FinalModulation(*self.final.index_select(0, times).unbind(1)),
        )


def modulation_table(
    embedding: torch.Tensor, blocks: Sequence[nn.Linear], final: nn.Linear
) -> ModulationTable:
    """Run every AdaLN projection on embedded times.

    Args:
        embedding: fp32 [M, time_out_dim]. It is activated in fp32 and rounded to the projections'
            dtype afterwards: one rounding before the activation would bias every block alike.
        blocks: the blocks' projections, time_out_dim -> 18 * hidden. Weights that lie elsewhere
            visit the embedding's device one block at a time; the table's bits are the same.
        final: the output norm's projection, time_out_dim -> 2 * hidden.

    Source: model sheet 1.3 steps 5 and 6, 1.8.
    """
    activated = silu(embedding).to(final.weight.dtype)
    count, hidden = embedding.shape[0], final.out_features // FINAL_PARTS
    table = activated.new_empty((len(blocks), count, len(Modality), BLOCK_PARTS, hidden))
    for rows, projection in zip(table, blocks, strict=True):
        weight = projection.weight.to(activated.device, non_blocking=True)
        bias = projection.bias.to(activated.device, non_blocking=True)
        rows.copy_(linear(activated, weight, bias).view(rows.shape))
    return ModulationTable(table, final(activated).view(count, FINAL_PARTS, hidden))


def is_block_projection(name: str) -> bool:
    """Whether a parameter of the transformer belongs to a block's AdaLN projection."""
    return name.startswith("blocks.") and ".adaln." in name


def pin_block_projections_(model: nn.Module) -> None:
    """Pin the blocks' projections, which lie on the host, so that they copy at full speed."""
    for name, parameter in model.named_parameters():
        if is_block_projection(name) and not parameter.is_pinned():
            parameter.data = parameter.data.pin_memory()
