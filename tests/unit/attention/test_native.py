import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

from minimax_h3.attention import libraries, native
from minimax_h3.attention.base import BACKENDS, select
from minimax_h3.attention.side_by_side import side_by_side
from minimax_h3.core.errors import BackendUnavailableError

CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(libraries, "NATIVE_FOLDER", tmp_path)
    native.load_library.cache_clear()
    return tmp_path


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some Hopper GPU")


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("name", ["fa3", "trtllm"])
def test_a_library_that_was_not_built_is_named_with_the_command(name: str) -> None:
    with pytest.raises(BackendUnavailableError) as caught:
        select(name, CUDA, torch.bfloat16, 128)
    assert f"h3_{name}.so is missing" in str(caught.value)
    assert "python -m build_engines kernels" in str(caught.value)


def test_another_gpu_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some Ada GPU")
    with pytest.raises(BackendUnavailableError, match=r"Some Ada GPU does not have .* 9\.0"):
        select("fa3", CUDA, torch.bfloat16, 128)


@pytest.mark.usefixtures("hopper")
def test_auto_names_what_it_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: False)
    chosen = select("auto", CUDA, torch.bfloat16, 128)
    assert chosen.backend.name == "sdpa"
    for reason in ("fa3: ", "h3_fa3.so is missing", "cudnn: this PyTorch has no cuDNN"):
        assert reason in chosen.reason


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("head_dim", [64, 96, 256])
def test_only_heads_of_128_are_offered(head_dim: int) -> None:
    with pytest.raises(BackendUnavailableError, match=f"head_dim {head_dim} is not a multiple"):
        select("fa3", CUDA, torch.bfloat16, head_dim)


def test_a_file_that_is_no_library_is_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "h3_fa3.so").write_bytes(b"no library")
    plain = ctypes.CDLL
    monkeypatch.setattr(
        ctypes, "CDLL", lambda path, *a, **k: None if "libcuda" in path else plain(path, *a, **k)
    )
    with pytest.raises(BackendUnavailableError, match=r"h3_fa3\.so cannot be loaded"):
        native.load_library("h3_fa3", ("h3_fa3_bf16",))


def test_a_library_without_the_function_is_out_of_date(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = folder / "old.c"
    source.write_text('const char *h3_error(int code) { return "no"; }\n')
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", str(folder / "h3_fa3.so"), str(source)], check=True
    )
    plain = ctypes.CDLL
    monkeypatch.setattr(
        ctypes, "CDLL", lambda path, *a, **k: None if "libcuda" in path else plain(path, *a, **k)
    )
    with pytest.raises(BackendUnavailableError, match=r"h3_fa3\.so has no h3_fa3_bf16; build it"):
        native.load_library("h3_fa3", ("h3_fa3_bf16",))
    assert native.load_library("h3_fa3", ()).h3_error(1) == b"no"


def test_side_by_side_finds_the_tensor_behind_its_views() -> None:
    packed = torch.randn(9, 3, 2, 8)
    q, k, v = packed[2:].unbind(1)
    joined = side_by_side(q, k, v)
    assert joined.data_ptr() == q.data_ptr()
    assert torch.equal(joined, packed[2:])


def test_side_by_side_copies_everything_else() -> None:
    packed = torch.randn(9, 3, 2, 8)
    q, k, v = packed.unbind(1)
    for parts in ((q, k, v.clone()), (q.clone(), k, v), (k, q, v), (v, k, q)):
        joined = side_by_side(*parts)
        assert joined.is_contiguous()
        assert torch.equal(joined, torch.stack(parts, dim=1))
        assert joined.data_ptr() != packed.data_ptr()


def test_every_registered_backend_states_whether_it_is_lossless() -> None:
    pytest.importorskip("triton", reason="the package triton is not installed")
    import importlib

    lossless = {
        name: importlib.import_module(module).load_backend().capabilities.lossless
        for name, module in BACKENDS.items()
    }
    assert {name for name, exact in lossless.items() if not exact} == {"fa3_e4m3", "trtllm_e4m3"}
