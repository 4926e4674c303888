import stat
from pathlib import Path

import pytest

from build_engines import attention_kernels
from build_engines.__main__ import main
from build_engines.attention_kernels import SOURCE_FOLDER, Toolchain, build
from minimax_h3.core.errors import BackendUnavailableError


@pytest.fixture
def flashinfer(tmp_path: Path) -> Path:
    """The folders of an unzipped wheel, without its files."""
    (tmp_path / "flashinfer" / "data" / "csrc" / "fmha_v2").mkdir(parents=True)
    return tmp_path / "flashinfer"


def compiler(folder: Path, body: str) -> str:
    path = folder / "nvcc"
    path.write_text(f"#!/usr/bin/env bash\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_missing_compiler_is_named(flashinfer: Path) -> None:
    with pytest.raises(BackendUnavailableError, match="nvcc: 'no-such-nvcc' is not on the PATH"):
        Toolchain.find("no-such-nvcc", flashinfer)


def test_missing_sources_come_with_the_command_that_gets_them(tmp_path: Path) -> None:
    nvcc = compiler(tmp_path, "exit 0")
    with pytest.raises(BackendUnavailableError, match="pip install --no-deps flashinfer-python"):
        Toolchain.find(nvcc, tmp_path / "elsewhere")


def test_every_source_becomes_a_library_of_its_name(tmp_path: Path, flashinfer: Path) -> None:
    # The stand-in compiler writes its words where the library should be.
    nvcc = compiler(
        tmp_path, 'words="$*"; while [ "$1" != -o ]; do shift; done; echo "$words" > "$2"'
    )
    lines = list(build(Toolchain.find(nvcc, flashinfer), tmp_path / "native"))
    names = {f"h3_{source.stem}.so" for source in SOURCE_FOLDER.glob("*.cu")}
    assert {path.name for path in (tmp_path / "native").iterdir()} == names
    assert names == {"h3_fa3.so", "h3_trtllm.so"}
    assert len(lines) == len(names)
    words = (tmp_path / "native" / "h3_fa3.so").read_text()
    assert "arch=compute_90a,code=sm_90a" in words
    assert f"-isystem {flashinfer}/data/include" in words


def test_a_failing_compiler_is_quoted_and_leaves_nothing(
    tmp_path: Path, flashinfer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nvcc = compiler(tmp_path, "echo 'fa3.cu(1): error: no' >&2; exit 2")
    native = tmp_path / "native"
    words = ["kernels", "--nvcc", nvcc, "--flashinfer", str(flashinfer), "--folder", str(native)]
    assert main(words) == 1
    assert "error: no" in capsys.readouterr().err
    assert not list(native.iterdir())


def test_exported_functions_are_those_that_python_calls() -> None:
    text = "".join(source.read_text() for source in SOURCE_FOLDER.glob("*.cu"))
    for function in ("h3_fa3_bf16", "h3_fa3_e4m3", "h3_trtllm", "h3_error"):
        assert f" {function}(" in text.replace("*", " ")
    assert attention_kernels.FLASHINFER_VERSION == "0.7.4"
