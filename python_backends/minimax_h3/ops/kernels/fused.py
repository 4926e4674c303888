"""The fused bundle: every operation of `RowOps` as one kernel."""

import torch

from minimax_h3.ops.kernels import modulate as modulation
from minimax_h3.ops.kernels import rotate
from minimax_h3.ops.kernels import swiglu as activation
from minimax_h3.ops.rope import RotaryTable


class FusedOps:
    """Fused kernels.

    Args:
        exact: round to the tensors' dtype after every operation, as the reference does; otherwise
            compute in fp32 and round what is stored, which is closer to the truth.
    """

    def __init__(self, *, exact: bool) -> None:
        self._exact = exact
        self.name = "fused_exact" if exact else "fused"

    def norm_modulate(
        self,
        hidden: torch.Tensor,
        norm: torch.nn.RMSNorm,
        shift: torch.Tensor,
        scale: torch.Tensor,
        index: torch.Tensor,
    ) -> torch.Tensor:
        """See `RowOps`."""
        return modulation.modulate(
            hidden, index, norm=norm, shift=shift, scale=scale, exact=self._exact
        )

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
        return modulation.modulate(
            hidden,
            index,
            branch=branch,
            gate=gate,
            norm=norm,
            shift=shift,
            scale=scale,
            exact=self._exact,
        )

    def gated_residual_(
        self, hidden: torch.Tensor, branch: torch.Tensor, gate: torch.Tensor, index: torch.Tensor
    ) -> None:
        """See `RowOps`."""
        modulation.modulate(hidden, index, branch=branch, gate=gate, exact=self._exact)

    def query_key_value(
        self,
        projected: torch.Tensor,
        q_norm: torch.nn.RMSNorm,
        k_norm: torch.nn.RMSNorm,
        rotary: RotaryTable | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `RowOps`; the three are views of `projected`."""
        rotate.norm_rotate_(projected, q_norm, k_norm, rotary, exact=self._exact)
        q, k, v = projected.unbind(1)
        return q, k, v

    def swiglu(self, gate_value: torch.Tensor) -> torch.Tensor:
        """See `RowOps`."""
        return activation.swiglu(gate_value, exact=self._exact)
