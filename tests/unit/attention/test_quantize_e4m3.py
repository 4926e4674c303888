"""Quantizing to e4m3 in Triton's interpreter, against plain PyTorch."""

import torch
from oracles.interpreted import import_interpreted

(quantize_e4m3,) = import_interpreted("minimax_h3.attention.quantize_e4m3")

ROWS, HEADS, WIDTH = 1030, 2, 16  # more rows than one program of the statistics takes


def draw() -> torch.Tensor:
    packed = torch.randn(ROWS, 3, HEADS, WIDTH, generator=torch.Generator().manual_seed(0))
    packed[:, 1, :, 2] += 20  # keys share a channel
    packed[:, :, 1] *= 7  # heads differ in size
    return packed.bfloat16()


def expected(packed: torch.Tensor, per_head: bool) -> tuple[torch.Tensor, torch.Tensor]:
    wide = packed.float().clone()
    wide[:, 1] -= wide[:, 1].mean(0)
    largest = wide.abs().amax(dim=(0, 3))
    if not per_head:
        largest = largest.amax(1, keepdim=True).expand(3, HEADS)
    scales = largest / 448
    return (wide / scales[None, :, :, None]).to(torch.float8_e4m3fn), scales


def test_equals_plain_pytorch() -> None:
    for per_head in (True, False):
        packed = draw()
        small = quantize_e4m3.quantize(packed, per_head=per_head)
        values, scales = expected(packed, per_head)
        torch.testing.assert_close(small.scales, scales, rtol=1e-5, atol=0)
        # The mean is summed in another order: values on a rounding edge may fall either way.
        same = (small.packed.float() == values.float()).float().mean()
        assert same > 0.995, per_head
        assert small.packed.float().abs().max() == 448


def test_values_come_back_within_three_bits_and_keys_without_their_mean() -> None:
    packed = draw()
    small = quantize_e4m3.quantize(packed)
    back = small.packed.float() * small.scales[None, :, :, None]
    wide = packed.float()
    wide[:, 1] -= wide[:, 1].mean(0)
    error = (back - wide).norm(dim=(0, 3)) / wide.norm(dim=(0, 3))
    assert float(error.max()) < 0.03
    assert float((back[:, 1].mean(0)).abs().max()) < 0.1


def test_a_head_of_zeros_stays_zero() -> None:
    packed = draw()
    packed[:, 2, 0] = 0
    small = quantize_e4m3.quantize(packed)
    assert (small.packed[:, 2, 0].float() == 0).all()
    assert small.scales.isfinite().all()
