"""Every attention backend on the GPU: against FP32, documents apart, padding full of NaN."""

from itertools import pairwise

import pytest
import torch

from minimax_h3.attention.base import BACKENDS, AttentionBackend, select
from minimax_h3.attention.side_by_side import side_by_side
from minimax_h3.core.errors import BackendUnavailableError

quantize_e4m3 = pytest.importorskip("minimax_h3.attention.quantize_e4m3")

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

GPU = torch.device("cuda", 0)
HEADS, HEAD_DIM = 7, 128
LOSSLESS_TOLERANCE, E4M3_TOLERANCE = 8e-3, 8e-2


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> AttentionBackend:
    try:
        return select(request.param, GPU, torch.bfloat16, HEAD_DIM, documents=2).backend
    except BackendUnavailableError as error:
        pytest.skip(reason=str(error))


def draw(rows: int, seed: int = 0, heads: int = HEADS) -> torch.Tensor:
    generator = torch.Generator(GPU).manual_seed(seed)
    shape = (rows, 3, heads, HEAD_DIM)
    return torch.randn(shape, generator=generator, device=GPU).bfloat16()


def exact(packed: torch.Tensor, bounds: tuple[int, ...]) -> torch.Tensor:
    q, k, v = packed.double().unbind(1)
    out = torch.empty_like(q)
    for a, b in pairwise(bounds):
        scores = torch.einsum("qhd,khd->hqk", q[a:b], k[a:b]) * HEAD_DIM**-0.5
        out[a:b] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v[a:b])
    return out


def error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual.double() - expected).norm() / expected.norm())


def tolerance(backend: AttentionBackend) -> float:
    return LOSSLESS_TOLERANCE if backend.capabilities.lossless else E4M3_TOLERANCE


@pytest.mark.parametrize("bounds", [(0, 1000), (0, 1), (0, 193), (0, 10, 30), (0, 300, 301, 1000)])
def test_equals_softmax_in_fp64(backend: AttentionBackend, bounds: tuple[int, ...]) -> None:
    packed = draw(bounds[-1])
    packed[:, 1] += 3  # keys share a mean, as real ones do
    attended = backend(*packed.unbind(1), bounds)
    assert attended.shape == (bounds[-1], HEADS, HEAD_DIM)
    assert attended.dtype == torch.bfloat16
    assert error(attended, exact(packed, bounds)) < tolerance(backend)


def test_tensors_of_their_own_give_the_same_bits(backend: AttentionBackend) -> None:
    packed = draw(500)
    views = backend(*packed.unbind(1), (0, 500))
    apart = backend(*(rows.contiguous() for rows in packed.unbind(1)), (0, 500))
    assert torch.equal(views, apart)


@pytest.mark.parametrize("bounds", [(0, 10, 30), (0, 10, 30, 45)])
def test_documents_never_see_each_other(backend: AttentionBackend, bounds: tuple[int, ...]) -> None:
    packed = draw(bounds[-1])
    before = backend(*packed.unbind(1), bounds)
    for changed, (a, b) in enumerate(pairwise(bounds)):
        other = packed.clone()
        other[a:b] = 40 * draw(b - a, seed=changed + 1)
        after = backend(*other.unbind(1), bounds)
        same = torch.ones(bounds[-1], dtype=torch.bool, device=GPU)
        same[a:b] = False
        assert torch.equal(after[same], before[same])
        assert not torch.equal(after[a:b], before[a:b])


def test_padding_full_of_nan_is_never_read(backend: AttentionBackend) -> None:
    """58,758 rows in a buffer of 58,816, as a reference implementation pads them."""
    used, padded, heads = 58_758, 58_816, 2
    packed = torch.full((padded, 3, heads, HEAD_DIM), float("nan"), device=GPU).bfloat16()
    packed[:used] = draw(used, heads=heads)
    cut = backend(*packed[:used].unbind(1), (0, used))
    assert cut.isfinite().all()
    with_padding = backend(*packed.unbind(1), (0, used, padded))
    assert torch.equal(with_padding[:used], cut)
    picked = torch.tensor([0, 1, 4_711, used - 1], device=GPU)
    q, k, v = (rows.float() for rows in packed[:used].unbind(1))
    scores = torch.einsum("qhd,khd->hqk", q[picked], k) * HEAD_DIM**-0.5
    expected = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)
    assert error(cut[picked], expected.double()) < 3 * tolerance(backend)


def test_huge_values_stay_finite(backend: AttentionBackend) -> None:
    packed = draw(777)
    packed[:, :, :, 3] *= 500
    packed[13] *= 100
    assert backend(*packed.unbind(1), (0, 777)).isfinite().all()


def test_views_are_packed_without_a_copy() -> None:
    packed = draw(20)
    q, k, v = packed[3:].unbind(1)
    joined = side_by_side(q, k, v)
    assert joined.data_ptr() == q.data_ptr()
    assert torch.equal(joined, packed[3:])
    assert torch.equal(side_by_side(q.contiguous(), k, v), packed[3:])


def test_auto_is_lossless() -> None:
    chosen = select("auto", GPU, torch.bfloat16, HEAD_DIM)
    assert chosen.backend.capabilities.lossless
    assert chosen.backend.name in chosen.reason


@pytest.mark.parametrize("name", ["fa3_e4m3", "trtllm_e4m3"])
def test_freeing_keys_of_their_mean_helps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that share large channels: with the mean left in, e4m3 has little room for the rest."""
    backend = select(name, GPU, torch.bfloat16, HEAD_DIM).backend
    packed = draw(4000)
    packed[:, 1, :, ::9] += 12
    expected = exact(packed, (0, 4000))
    smoothed = error(backend(*packed.unbind(1), (0, 4000)), expected)
    plain = quantize_e4m3._shift_and_scales

    def unsmoothed(statistics: torch.Tensor, *rest: object) -> tuple[torch.Tensor, torch.Tensor]:
        statistics[2] = 0
        return plain(statistics, *rest)

    monkeypatch.setattr(quantize_e4m3, "_shift_and_scales", unsmoothed)
    left_in = error(backend(*packed.unbind(1), (0, 4000)), expected)
    print(name, "error with the mean", left_in, "without", smoothed)  # noqa: T201
    assert smoothed < E4M3_TOLERANCE
    assert smoothed < 0.7 * left_in
