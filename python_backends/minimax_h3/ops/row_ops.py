"""The elementwise operations of a block as one bundle: plain PyTorch, or fused kernels.

A forward calls the bundle and nothing else between its matrix products and its attention, so that
what is fused is decided in one place.
"""

import importlib
from typing import NamedTuple, Protocol

import torch

from minimax_h3.core.errors import BackendUnavailableError
from minimax_h3.ops import norm as plain
from minimax_h3.ops.requirements import what_fused_lacks
from minimax_h3.ops.rope import RotaryTable, rotate_

AUTO = "auto"
ROW_OPS = ("reference", "fused", "fused_exact")


class RowOps(Protocol):
    """What a block computes row by row.

    A name that ends in `_` works in place on its first argument. `index` is int64 [S]: the table
    row of each packed row.
    """

    @property
    def name(self) -> str:
        """The word that selects it in the configuration."""
        ...

    def norm_modulate(
        self,
        hidden: torch.Tensor,
        norm: torch.nn.RMSNorm,
        shift: torch.Tensor,
        scale: torch.Tensor,
        index: torch.Tensor,
    ) -> torch.Tensor:
        """`rms_norm(hidden) * (1 + scale) + shift`, a new tensor [S, width]."""
        ...

    def gated_norm_modulate_(
        self,
        hidden: torch.Tensor,
        branch: torch.Tensor,
        gate: torch.Tensor,
        norm: torch.nn.RMSNorm,
        shift: torch.Tensor,
        scale: torch.Tensor,
        index: torch.Tensor,
    ) -> torch.Tensor:
        """`hidden += gate * branch`, then `norm_modulate` of it; may overwrite `branch`."""
        ...

    def gated_residual_(
        self, hidden: torch.Tensor, branch: torch.Tensor, gate: torch.Tensor, index: torch.Tensor
    ) -> None:
        """`hidden += gate * branch`; may overwrite `branch`."""
        ...

    def query_key_value(
        self,
        projected: torch.Tensor,
        q_norm: torch.nn.RMSNorm,
        k_norm: torch.nn.RMSNorm,
        rotary: RotaryTable | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Norm and rotate q and k, [S, 3, H, D] to three [S, H, D]; may overwrite `projected`."""
        ...

    def swiglu(self, gate_value: torch.Tensor) -> torch.Tensor:
        """`silu(gate) * value` of [S, 2 * width], gate first: a new tensor [S, width]."""
        ...


class ReferenceOps:
    """PyTorch operation by operation, rounding to the tensors' dtype after each one."""

    name = "reference"

    norm_modulate = staticmethod(plain.norm_modulate)
    gated_residual_ = staticmethod(plain.gated_residual_)
    swiglu = staticmethod(plain.swiglu)

    def gated_norm_modulate_(
        self,
        hidden: torch.Tensor,
        branch: torch.Tensor,
        gate: torch.Tensor,
        norm: torch.nn.RMSNorm,
        shift: torch.Tensor,
        scale: torch.Tensor,
        index: torch.Tensor,
    ) -> torch.Tensor:
        """See `RowOps`."""
        plain.gated_residual_(hidden, branch, gate, index)
        return plain.norm_modulate(hidden, norm, shift, scale, index)

    def query_key_value(
        self,
        projected: torch.Tensor,
        q_norm: torch.nn.RMSNorm,
        k_norm: torch.nn.RMSNorm,
        rotary: RotaryTable | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `RowOps`."""
        q, k, v = projected.unbind(1)
        q, k = plain.rms_norm(q, q_norm), plain.rms_norm(k, k_norm)
        if rotary is not None:
            rotate_(q, rotary)
            rotate_(k, rotary)
        return q, k, v


REFERENCE = ReferenceOps()


class Choice(NamedTuple):
    """Chosen operations and why, for the log and the metadata."""

    row_ops: RowOps
    reason: str


def select_row_ops(name: str, device: torch.device) -> Choice:
    """Choose a bundle by name; `auto` is `fused` on a GPU with Triton's language.

    Args:
        name: `auto`, or one of `ROW_OPS`.
        device: where the rows live.

    Raises:
        BackendUnavailableError: unknown name, or asked for by name and not here; it says what is
            missing.
    """
    if name not in (AUTO, *ROW_OPS):
        legal = ", ".join((AUTO, *ROW_OPS))
        raise BackendUnavailableError(f"row_ops: {name!r} is not known; legal: {legal}")
    if name == "reference":
        return Choice(REFERENCE, "reference was asked for by name")
    missing = what_fused_lacks(device.type)
    if missing is None:
        fused: RowOps = importlib.import_module("minimax_h3.ops.kernels.fused").FusedOps(
            exact=name == "fused_exact"
        )
        return Choice(fused, "auto: a GPU" if name == AUTO else f"{name} was asked for by name")
    if name != AUTO:
        raise BackendUnavailableError(f"row_ops: {name} cannot run here; {missing}")
    return Choice(REFERENCE, f"auto: {missing}")
