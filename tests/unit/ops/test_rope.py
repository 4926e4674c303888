import math

import pytest
import torch
from diffusers.models.transformers.transformer_minimax_h3 import MiniMaxH3RotaryPosEmbed
from oracles.diffusers_dit import small_layout

from minimax_h3.ops.rope import rotary_table, rotate_

FREQS, HEAD_DIM = 4, 32
POSITIONS = small_layout(("first", "last")).positions


def heads(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(POSITIONS.shape[0], 2, HEAD_DIM, generator=generator).to(dtype)


@pytest.mark.parametrize("freqs", [2, 4, 16])
def test_table_is_bitwise_the_reference(freqs: int) -> None:
    cos, sin = MiniMaxH3RotaryPosEmbed(freqs, 10000.0)(POSITIONS)
    table = rotary_table(POSITIONS, freqs, 10000.0)
    half = 3 * freqs
    assert torch.equal(table.cos[:, 0], cos)
    assert torch.equal(table.sin[:, 0, half:], sin[:, half:])
    assert torch.equal(table.sin[:, 0, :half], -sin[:, :half])


def test_rotation_equals_the_plain_formula() -> None:
    before = heads().double()
    after = rotate_(heads(), rotary_table(POSITIONS, FREQS, 10000.0))
    half = 3 * FREQS
    for d in range(half):
        axis, i = divmod(d, FREQS)
        angle = (POSITIONS[:, axis] * 10000 ** (-i / FREQS))[:, None]
        a, b = before[..., d], before[..., d + half]
        first, second = a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()
        torch.testing.assert_close(after[..., d].double(), first, rtol=0, atol=1e-5)
        torch.testing.assert_close(after[..., d + half].double(), second, rtol=0, atol=1e-5)


def test_dimensions_beyond_the_rotated_ones_pass_through() -> None:
    after = rotate_(heads(), rotary_table(POSITIONS, FREQS, 10000.0))
    assert torch.equal(after[..., 6 * FREQS :], heads()[..., 6 * FREQS :])
    assert not torch.equal(after[..., : 6 * FREQS], heads()[..., : 6 * FREQS])


def test_scores_depend_on_distance_only() -> None:
    """Two rows that move together keep their product."""
    q, k = torch.randn(1, 1, HEAD_DIM), torch.randn(1, 1, HEAD_DIM)
    products = []
    for moved in (0.0, 7.25):
        at = torch.tensor([[3.0, 1.0, 2.0], [5.0, 4.0, -1.0]], dtype=torch.float64) + moved
        table = rotary_table(at, FREQS, 10000.0)
        both = rotate_(torch.cat((q, k)).clone(), table)
        products.append(float((both[0] * both[1]).sum()))
    assert math.isclose(*products, abs_tol=1e-4)


def test_bf16_rounds_each_product_before_the_sum() -> None:
    table = rotary_table(POSITIONS, FREQS, 10000.0).to(torch.device("cpu"), torch.bfloat16)
    before, half = heads(torch.bfloat16), 3 * FREQS
    cos, sin = table.cos, table.sin[..., half:]
    a, b = before[..., :half], before[..., half : 2 * half]
    expected_first = a * cos[..., :half] + (-b) * sin
    expected_second = b * cos[..., :half] + a * sin
    after = rotate_(before.clone(), table)
    assert torch.equal(after[..., :half], expected_first)
    assert torch.equal(after[..., half : 2 * half], expected_second)
