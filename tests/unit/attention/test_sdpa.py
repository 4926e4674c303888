import math
from itertools import pairwise

import pytest
import torch

from minimax_h3.attention.sdpa import SdpaAttention

ATTEND = SdpaAttention()


def rows(count: int = 30, heads: int = 3, width: int = 16) -> torch.Tensor:
    """q, k and v side by side, [S, 3, H, D], as the fused projection leaves them."""
    return torch.randn(count, 3, heads, width, generator=torch.Generator().manual_seed(count))


def by_hand(qkv: torch.Tensor, bounds: tuple[int, ...]) -> torch.Tensor:
    q, k, v = qkv.double().unbind(1)
    out = torch.empty_like(q)
    for a, b in pairwise(bounds):
        scores = torch.einsum("qhd,khd->hqk", q[a:b], k[a:b]) / math.sqrt(q.shape[-1])
        out[a:b] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v[a:b])
    return out


@pytest.mark.parametrize("bounds", [(0, 30), (0, 10, 30), (0, 1, 2, 30), (0, 29, 30)])
def test_attention_equals_softmax_by_hand(bounds: tuple[int, ...]) -> None:
    qkv = rows()
    attended = ATTEND(*qkv.unbind(1), bounds)
    assert attended.shape == (30, 3, 16)
    torch.testing.assert_close(attended.double(), by_hand(qkv, bounds), rtol=0, atol=1e-6)


def test_documents_never_see_each_other() -> None:
    qkv = rows()
    other = qkv.clone()
    other[10:] = torch.randn_like(other[10:]) * 50
    first, second = (ATTEND(*each.unbind(1), (0, 10, 30)) for each in (qkv, other))
    assert torch.equal(first[:10], second[:10])
    assert not torch.equal(first[10:], second[10:])


def test_each_document_equals_itself_alone() -> None:
    qkv = rows()
    together = ATTEND(*qkv.unbind(1), (0, 10, 30))
    alone = [ATTEND(*part.unbind(1), (0, part.shape[0])) for part in (qkv[:10], qkv[10:])]
    assert torch.equal(together, torch.cat(alone))


def test_attention_runs_both_ways() -> None:
    """A change of the last row reaches the first, so nothing is causal."""
    qkv = rows()
    other = qkv.clone()
    other[-1, 2] += 1.0
    first, second = (ATTEND(*each.unbind(1), (0, 30)) for each in (qkv, other))
    assert not torch.equal(first[0], second[0])


def test_bounds_that_do_not_cover_the_rows_are_a_bug() -> None:
    with pytest.raises(AssertionError):
        ATTEND(*rows().unbind(1), (0, 10))
