"""Compile the attention kernels of `minimax_h3.attention` from FlashInfer's sources with nvcc."""

import importlib.util
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from minimax_h3.attention.libraries import NATIVE_FOLDER
from minimax_h3.core.errors import BackendUnavailableError

FLASHINFER_VERSION = "0.7.4"
"""The version that the sources in `kernels/` were written against."""

SOURCE_FOLDER = Path(__file__).parent / "kernels"
_FLAGS = (
    *("-std=c++17", "-O3", "-DNDEBUG", "-shared", "-Xcompiler", "-fPIC", "-cudart", "static"),
    *("--expt-relaxed-constexpr", "--expt-extended-lambda", "--generate-code"),
    *("arch=compute_90a,code=sm_90a", "-DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED"),
    *("-DFLASHINFER_ENABLE_BF16", "-DFLASHINFER_ENABLE_F16", "-DFLASHINFER_ENABLE_FP8_E4M3"),
    *("-DFLASHINFER_ENABLE_FP8_E5M2", "-DFLASHINFER_ENABLE_FP8_E8M0"),
    "-DFLASHINFER_ENABLE_FP4_E2M1",
)
_INCLUDES = (
    *("csrc/fmha_v2", "include", "cutlass/include", "cutlass/tools/util/include"),
    *("cccl/cub", "cccl/libcudacxx/include", "cccl/thrust"),
)


@dataclass(frozen=True, slots=True)
class Toolchain:
    """What compiles, and the sources that it reads.

    Attributes:
        nvcc: CUDA 12.8 or newer.
        flashinfer: the folder `flashinfer/data` of the wheel.
        headers: further include folders, of cuBLAS and cuRAND where the toolkit lacks them.
    """

    nvcc: str
    flashinfer: Path
    headers: tuple[Path, ...]

    @classmethod
    def find(cls, nvcc: str | None = None, flashinfer: Path | None = None) -> "Toolchain":
        """Look for nvcc on the PATH and for FlashInfer in this Python, which is not imported.

        Raises:
            BackendUnavailableError: one is missing; the message says how to get it.
        """
        found = shutil.which(nvcc or "nvcc")
        if found is None:
            raise BackendUnavailableError(
                f"nvcc: {nvcc or 'nvcc'!r} is not on the PATH; install CUDA or pass --nvcc"
            )
        sources = flashinfer or next(iter(_folders("flashinfer")), None)
        if sources is None or not (sources / "data" / "csrc" / "fmha_v2").is_dir():
            raise BackendUnavailableError(
                f"FlashInfer's sources are not here; `pip install --no-deps flashinfer-python=="
                f"{FLASHINFER_VERSION}`, or unzip its wheel and pass --flashinfer"
            )
        headers = [folder for root in _folders("nvidia") for folder in root.glob("*/include")]
        return cls(found, sources / "data", tuple(sorted(headers)))

    def command(self, source: Path, target: Path) -> list[str]:
        """The compiler's words for one library."""
        folders = [self.flashinfer / name for name in _INCLUDES]
        includes = [
            word for folder in (*folders, *self.headers) for word in ("-isystem", str(folder))
        ]
        return [self.nvcc, *_FLAGS, *includes, "-o", str(target), str(source)]


def build(toolchain: Toolchain, folder: Path = NATIVE_FOLDER, jobs: int = 2) -> Iterator[str]:
    """Compile every library and yield a line for each.

    Args:
        toolchain: from `Toolchain.find`.
        folder: where the libraries go.
        jobs: compilers at once; each takes one core for one to two minutes and 4 GB.

    Raises:
        BackendUnavailableError: the compiler failed; the end of its output is in the message.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(
            lambda source: _compile(toolchain, source, folder), sorted(SOURCE_FOLDER.glob("*.cu"))
        )


def _compile(toolchain: Toolchain, source: Path, folder: Path) -> str:
    began, target = time.monotonic(), folder / f"h3_{source.stem}.so"
    part = target.with_suffix(".part")
    done = subprocess.run(
        toolchain.command(source, part), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BackendUnavailableError(f"nvcc failed on {source.name}: {done.stderr[-2000:]}")
    part.replace(target)
    return f"{target}: {target.stat().st_size} bytes, {time.monotonic() - began:.0f} s"


def _folders(package: str) -> list[Path]:
    """Where an installed package lies; a namespace package may lie in several places."""
    spec = importlib.util.find_spec(package)
    return [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
