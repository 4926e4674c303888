import sys
from types import ModuleType

import pytest
import torch
from oracles.fused_cases import Case, Tables, rotary

from minimax_h3.core.config import ROW_OPS as CONFIGURED
from minimax_h3.core.errors import BackendUnavailableError
from minimax_h3.ops import norm
from minimax_h3.ops.rope import rotate_
from minimax_h3.ops.row_ops import AUTO, REFERENCE, ROW_OPS, select_row_ops

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def test_configuration_names_the_same_bundles() -> None:
    assert set(CONFIGURED) == {AUTO, *ROW_OPS}


def test_auto_on_a_cpu_is_the_reference_and_says_why() -> None:
    row_ops, reason = select_row_ops("auto", CPU)
    assert row_ops is REFERENCE
    assert reason == "auto: device cpu is not cuda"


def test_auto_without_triton_is_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    row_ops, reason = select_row_ops("auto", CUDA)
    assert row_ops is REFERENCE
    assert "triton cannot be imported" in reason


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fused", "row_ops: fused cannot run here; device cpu is not cuda"),
        ("fused_exact", "row_ops: fused_exact cannot run here; device cpu"),
        ("quick", "row_ops: 'quick' is not known; legal: auto, reference, fused"),
    ],
)
def test_asked_for_by_name_and_not_here_is_an_error(name: str, message: str) -> None:
    with pytest.raises(BackendUnavailableError, match=message):
        select_row_ops(name, CPU)


def test_a_gpu_gets_the_fused_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fused:
        def __init__(self, *, exact: bool) -> None:
            self.name = "fused_exact" if exact else "fused"

    module = ModuleType("minimax_h3.ops.kernels.fused")
    module.FusedOps = Fused  # type: ignore[attr-defined]  # that is how a module gets names
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert select_row_ops("auto", CUDA).row_ops.name == "fused"
    assert select_row_ops("fused_exact", CUDA).row_ops.name == "fused_exact"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_reference_is_the_plain_operations_in_order(dtype: torch.dtype) -> None:
    tables = Tables(Case(), CPU, dtype)
    stream, branch = tables.hidden.clone(), tables.branch.clone()
    normed = REFERENCE.gated_norm_modulate_(
        stream, branch, tables.gate, tables.norm, tables.shift, tables.scale, tables.index
    )
    expected = tables.hidden + tables.gate[tables.index] * tables.branch
    assert torch.equal(stream, expected)
    modulated = norm.norm_modulate(expected, tables.norm, tables.shift, tables.scale, tables.index)
    assert torch.equal(normed, modulated)


def test_the_reference_rotates_q_and_k_only() -> None:
    case = Case()
    projected = torch.randn(case.rows, 3, case.heads, case.head_dim)
    norms = [torch.nn.RMSNorm(case.head_dim).requires_grad_(False) for _ in range(2)]
    table = rotary(case, CPU, torch.float32)
    q, k, v = REFERENCE.query_key_value(projected, *norms, table)
    assert torch.equal(q, rotate_(norms[0](projected[:, 0]), table))
    assert torch.equal(k, rotate_(norms[1](projected[:, 1]), table))
    assert torch.equal(v, projected[:, 2])
    plain, _, _ = REFERENCE.query_key_value(projected, *norms, None)
    assert torch.equal(plain, norms[0](projected[:, 0]))
