"""Kernels in Triton's interpreter, on a machine without a GPU."""

import importlib
import sys
from types import ModuleType

import numpy as np
import pytest
import torch

_BITS = {
    "bf16": (torch.bfloat16, torch.int16, np.uint16),
    "fp8e4nv": (torch.float8_e4m3fn, torch.uint8, np.uint8),
}


def import_interpreted(*names: str) -> list[ModuleType]:
    """Import modules with kernels so that these run in the interpreter.

    A test module calls it at its top: it is skipped where there is a GPU, because a kernel is
    compiled or interpreted, not both in one process, and where Triton's language is missing.
    """
    if torch.cuda.is_available():
        pytest.skip(reason="interpreted only where there is no GPU", allow_module_level=True)
    pytest.importorskip("triton", reason="the package triton is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        # PyTorch may have imported it already, and the language decides at import how it runs.
        for name in [name for name in sys.modules if f"{name}.".startswith("triton.")]:
            if not name.startswith("triton._C"):
                patch.delitem(sys.modules, name)
        modules = [importlib.import_module(name) for name in names]
        _round_to_nearest(importlib.import_module("triton.runtime.interpreter"))
    return modules


def _round_to_nearest(interpreter: ModuleType) -> None:
    """The interpreter cuts FP32 down without rounding; a GPU rounds to nearest even."""
    plain = interpreter._convert_float

    def convert(values: np.ndarray, source: object, target: object, mode: object) -> np.ndarray:
        if str(source) != "fp32" or str(target) not in _BITS:
            return plain(values, source, target, mode)
        dtype, bits, stored = _BITS[str(target)]
        return torch.from_numpy(values.copy()).to(dtype).view(bits).numpy().view(stored)

    interpreter._convert_float = convert
