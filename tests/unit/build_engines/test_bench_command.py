"""`h3 bench` on a CPU with a small model: what it measures, and when it stops."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from build_engines import bench_command
from build_engines.bench import block, forwards, operators
from build_engines.bench.workload import RELEASED, SMALL, Workload, flops
from minimax_h3.attention.sdpa import SdpaAttention
from minimax_h3.core.errors import BackendUnavailableError

CPU = torch.device("cpu")


def bench(tmp_path: Path, what: str, *words: str, status: int = 0) -> list[Any]:
    parser = argparse.ArgumentParser()
    bench_command.add_arguments(parser)
    path = tmp_path / "deep" / "report.json"
    common = ("--model", "small", "--device", "cpu", "--repeats", "1", "--forwards", "2")
    chosen = ("--attention", "sdpa", "--row-ops", "reference", "--json", str(path))
    args = parser.parse_args([what, *common, *chosen, *words])
    assert bench_command.run(args) == status
    report = json.loads(path.read_text())
    assert report["what"] == what
    return report["results"]


@pytest.mark.parametrize(("frames", "rows"), [(124, 37_966), (192, 58_758), (362, 109_318)])
def test_workloads_have_the_published_numbers_of_rows(frames: int, rows: int) -> None:
    assert Workload.of("released", frames).rows == rows


def test_flops_of_a_released_forward() -> None:
    """Source: model sheet 7: 38.535e9 S + 1.4336e6 S^2 for 50 blocks."""
    products, attention = flops(RELEASED, 1000)
    assert 50 * products == pytest.approx(38.535e12, rel=1e-3)
    assert 50 * attention == pytest.approx(1.4336e12, rel=1e-3)


def test_operators_and_their_ceiling(tmp_path: Path) -> None:
    (result,) = bench(tmp_path, "operators")
    assert result["rows"] == Workload.of("small", 124).rows
    assert result["attention"]["sdpa"]["error"] < 1e-3
    assert set(result["row_operations"]["reference"]) == {
        "gate_norm_modulate",
        "norm_rotate",
        "swiglu",
    }
    parts = result["matrix_products"]["total_ms"] + result["attention"]["sdpa"]["ms"]
    assert result["ceiling_ms"] == pytest.approx(parts + result["traffic_ms"], abs=0.01)


def test_a_block_beside_diffusers(tmp_path: Path) -> None:
    _, result = bench(tmp_path, "block", "--against", "diffusers")
    assert result["ours"]["reference"]["ms"] > 0
    assert result["theirs"]["diffusers"]["difference"] < 1e-5
    assert result["ours"]["reference"]["of_ceiling"] > 0


def test_forwards_beside_diffusers(tmp_path: Path) -> None:
    _, result = bench(tmp_path, "forward", "--against", "diffusers", "--layers", "1")
    assert result["theirs"]["diffusers"]["video_difference"] < 1e-4
    assert result["theirs"]["diffusers"]["audio_difference"] < 1e-4


def test_a_session_runs_the_first_forwards_of_a_request(tmp_path: Path) -> None:
    _, result = bench(tmp_path, "session")
    assert result["forwards"] == 2
    assert result["total_s"] > 0


def test_equality(tmp_path: Path) -> None:
    (result,) = bench(tmp_path, "equality", "--dtype", "bf16")
    assert result["sdpa+reference"] == result["reference"]
    assert result["adaln_table"]["equal"]


def test_a_profile_needs_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailableError, match="--profile: cpu has no kernels"):
        bench(tmp_path, "block", "--profile")


class BrokenAttention(SdpaAttention):
    """Right shapes, wrong numbers."""

    name = "broken"

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def __call__(self, q, k, v, cu_seqlens):  # type: ignore[no-untyped-def]  # as the real one
        return super().__call__(q, k, v, cu_seqlens) * self._factor


@pytest.mark.parametrize(
    ("factor", "why"), [(1.5, "relative error 0.5"), (float("nan"), "output is not finite")]
)
def test_a_wrong_attention_is_stopped_before_it_is_timed(
    monkeypatch: pytest.MonkeyPatch, factor: float, why: str
) -> None:
    def broken(name: str, *rest: object) -> Any:
        return argparse.Namespace(backend=BrokenAttention(factor))

    monkeypatch.setattr(operators, "select", broken)
    found = operators.attention(SMALL, 64, CPU, torch.float32, ["broken"], repeats=1)["broken"]
    assert why in found["stopped"]
    assert "ms" not in found


def test_a_block_that_differs_is_stopped() -> None:
    right = torch.ones(4, 4)
    assert block._judge(right, right) == {"difference": 0.0}
    assert "differs from the first" in block._judge(right * 1.2, right)["stopped"]
    assert "not finite" in block._judge(right * float("inf"), right)["stopped"]


def test_velocities_that_are_not_finite_stop_a_forward() -> None:
    wrong = forwards.Velocities(torch.full((2, 2), float("nan")), torch.ones(2, 2))
    entry, _ = forwards._timed(lambda: wrong, None, CPU, 1)
    assert entry["stopped"] == "video velocities are not finite"


def test_a_stopped_configuration_is_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block, "_judge", lambda out, expected: {"stopped": "wrong"})
    bench(tmp_path, "block", status=1)
