"""Where compiled attention libraries lie; `native` loads them."""

from pathlib import Path

from minimax_h3.core.errors import BackendUnavailableError

NATIVE_FOLDER = Path(__file__).parent / "native"
BUILD_COMMAND = "python -m build_engines kernels"


def library_file(name: str) -> Path:
    """The file of a library.

    Raises:
        BackendUnavailableError: it was not built here; the command that does is named.
    """
    path = NATIVE_FOLDER / f"{name}.so"
    if not path.is_file():
        raise BackendUnavailableError(f"{path} is missing; build it with `{BUILD_COMMAND}`")
    return path
