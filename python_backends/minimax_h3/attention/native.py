"""Compiled attention libraries: where they lie, how they are loaded, how they report errors.

`python -m build_engines kernels` compiles them into the folder beside this file. They are plain C
libraries with the CUDA runtime inside, so they fit any PyTorch and any Python.
"""

import ctypes
from collections.abc import Sequence
from functools import cache

import torch

from minimax_h3.attention.libraries import BUILD_COMMAND, library_file
from minimax_h3.core.errors import BackendUnavailableError, H3Error


@cache
def load_library(name: str, functions: tuple[str, ...]) -> ctypes.CDLL:
    """Load `name`.so from the native folder, once a process.

    Args:
        name: stem of the file.
        functions: what it must export.

    Raises:
        BackendUnavailableError: the file, the CUDA driver or a function is missing; it is named.
    """
    path = library_file(name)
    try:
        # The libraries leave the driver's symbols open, so that they link on machines without one.
        ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise BackendUnavailableError(f"{path.name} cannot be loaded ({error})") from error
    for function in (*functions, "h3_error"):
        if not hasattr(library, function):
            raise BackendUnavailableError(
                f"{path.name} has no {function}; build it anew with `{BUILD_COMMAND}`"
            )
    library.h3_error.restype = ctypes.c_char_p
    return library


def call(library: ctypes.CDLL, function: str, device: torch.device, *arguments: object) -> None:
    """Launch on the device's current stream, which goes last.

    Args:
        library: from `load_library`.
        function: its name; it returns a CUDA error code.
        device: of all tensors behind the arguments.
        arguments: tensors (by address), integers, floats, integer sequences, None.

    Raises:
        H3Error: the launch was refused.
    """
    stream = torch.cuda.current_stream(device).cuda_stream
    with torch.cuda.device(device):
        code = getattr(library, function)(
            *(_as_c(argument) for argument in arguments), ctypes.c_void_p(stream)
        )
    if code:
        raise H3Error(f"{function} failed: {library.h3_error(code).decode()}")


def _as_c(argument: object) -> object:
    if argument is None:
        return ctypes.c_void_p(None)
    if isinstance(argument, torch.Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    if isinstance(argument, float):
        return ctypes.c_float(argument)
    if isinstance(argument, Sequence):
        return (ctypes.c_int64 * len(argument))(*argument)
    assert isinstance(argument, int)
    return ctypes.c_int(argument)
