"""Where and with what a benchmark ran, and its results as a table."""

import platform
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from build_engines.attention_kernels import FLASHINFER_VERSION

_PACKAGES = ("torch", "triton", "diffusers", "numpy")


def environment(device: torch.device, commit: str | None) -> dict[str, Any]:
    """Commit, device and versions."""
    facts: dict[str, Any] = {
        "commit": commit or _commit(),
        "python": platform.python_version(),
        "flashinfer_sources": FLASHINFER_VERSION,
        **{name: _version(name) for name in _PACKAGES},
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "device": properties.name,
            "memory_gb": round(properties.total_memory / 1e9, 1),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]  # PyTorch has no types here
        }
    else:
        facts["device"] = platform.processor() or platform.machine()
    return facts


def lines(results: Any, indent: str = "") -> Iterator[str]:
    """Results as an indented table: numbers of one entry on one line."""
    if isinstance(results, list):
        for entry in results:
            yield from lines(entry, indent)
        return
    flat = {key: value for key, value in results.items() if not isinstance(value, dict | list)}
    if flat:
        yield indent + "  ".join(f"{key} {value}" for key, value in flat.items())
    for key, value in results.items():
        if isinstance(value, dict | list):
            yield f"{indent}{key}"
            yield from lines(value, indent + "  ")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    command = ["git", "rev-parse", "HEAD"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None
