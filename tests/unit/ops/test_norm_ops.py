import pytest
import torch
from torch import nn
from torch.nn.functional import silu

from minimax_h3.ops.norm import gated_residual_, norm_modulate, rms_norm, swiglu

ROWS, WIDTH, TABLE = 11, 24, 6


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def norm(dtype: torch.dtype = torch.float32) -> nn.RMSNorm:
    module = nn.RMSNorm(WIDTH, eps=1e-5, dtype=dtype).requires_grad_(False)
    module.weight.copy_(1 + 0.3 * draw(WIDTH, seed=9))
    return module


INDEX = torch.tensor([0, 5, 3, 3, 1, 0, 2, 4, 5, 5, 1])


def test_rms_norm_equals_the_formula() -> None:
    rows, module = draw(ROWS, WIDTH), norm()
    wide = rows.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * module.weight.double()
    torch.testing.assert_close(rms_norm(rows, module).double(), expected, rtol=0, atol=1e-6)


def test_rms_norm_reads_strided_heads() -> None:
    heads = draw(ROWS, 3, 2, WIDTH)
    assert torch.equal(rms_norm(heads[:, 1], norm()), rms_norm(heads[:, 1].contiguous(), norm()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_modulation_rounds_after_every_operation(dtype: torch.dtype) -> None:
    hidden, shift, scale = (
        draw(rows, WIDTH, seed=rows).to(dtype) for rows in (ROWS, TABLE, TABLE + 1)
    )
    module = norm(dtype)
    before = hidden.clone()
    one_by_one = module(hidden)
    one_by_one = one_by_one * (1.0 + scale[INDEX])
    one_by_one = one_by_one + shift[INDEX]
    assert torch.equal(norm_modulate(hidden, module, shift, scale, INDEX), one_by_one)
    assert torch.equal(hidden, before)


def test_one_rounding_would_give_other_bits() -> None:
    """The BF16 rounding order is a choice that shows: fp32 maths rounded once differs."""
    hidden, shift, scale = (draw(ROWS, WIDTH, seed=s).bfloat16() for s in (1, 2, 3))
    module, index = norm(torch.bfloat16), torch.arange(ROWS)
    wide = norm()(hidden.float()) * (1 + scale.float()) + shift.float()
    assert not torch.equal(norm_modulate(hidden, module, shift, scale, index), wide.bfloat16())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gate_is_raw_and_rounds_before_the_sum(dtype: torch.dtype) -> None:
    hidden, branch, gate = (
        draw(rows, WIDTH, seed=seed).to(dtype) for rows, seed in ((ROWS, 1), (ROWS, 2), (TABLE, 3))
    )
    expected = hidden + gate[INDEX] * branch
    gated_residual_(hidden, branch, gate, INDEX)
    assert torch.equal(hidden, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_swiglu_takes_the_gate_first(dtype: torch.dtype) -> None:
    gate, value = draw(ROWS, WIDTH, seed=1).to(dtype), draw(ROWS, WIDTH, seed=2).to(dtype)
    # silu of a strided half takes another code path of PyTorch, one ulp apart.
    torch.testing.assert_close(
        swiglu(torch.cat((gate, value), dim=-1)), silu(gate) * value, rtol=1e-6, atol=1e-6
    )
