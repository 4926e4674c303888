"""Where tritonserver is: inside the `nvidia-pytriton` wheel, or an installation named by path."""

import importlib.util
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from minimax_h3.core.errors import BackendUnavailableError

BACKEND_FILES = ("libtriton_python.so", "triton_python_backend_utils.py")
STUB = "triton_python_backend_stub"

# OpenMP threads spin while they wait, by default for milliseconds, and so take the cores from the
# other models' processes. This short, they still catch the next small operation of their own.
SPIN_COUNT = "3000"
OPENMP_WAITING = frozenset({"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"})  # the operator's own choice


@dataclass(frozen=True, slots=True)
class Installation:
    """A tritonserver that can be started.

    Attributes:
        executable: the server.
        flags: what this installation needs on the command line.
        library_path: folders in front of LD_LIBRARY_PATH.
        backend_files: files of the Python backend that `lay_out` copies into `backend_folder`.
        backend_folder: of the Python backend, when the installation has none of its own.
    """

    executable: Path
    flags: tuple[str, ...] = ()
    library_path: tuple[str, ...] = ()
    backend_files: tuple[Path, ...] = ()
    backend_folder: Path = Path()

    def lay_out(self) -> None:
        """Assemble the Python backend, when the installation needs that."""
        if self.backend_files:
            self.backend_folder.mkdir(parents=True)
        for file in self.backend_files:
            shutil.copy2(file, self.backend_folder)

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Variables to set on top of `inherited`."""
        # A stub takes the first python3 of PATH as its prefix: it must be this interpreter's.
        path = ":".join(filter(None, (str(Path(sys.executable).parent), inherited.get("PATH"))))
        changes = {"PATH": path}
        if not OPENMP_WAITING & inherited.keys():
            changes["GOMP_SPINCOUNT"] = SPIN_COUNT
        if self.library_path:
            libraries = filter(None, (*self.library_path, inherited.get("LD_LIBRARY_PATH")))
            changes["LD_LIBRARY_PATH"] = ":".join(libraries)
        return changes


def find_installation(tritonserver: Path | None, backends_folder: Path) -> Installation:
    """The server to start.

    Args:
        tritonserver: executable of a full installation, which has its own backends; None takes the
            wheel, whose Python backend `Installation.lay_out` assembles in `backends_folder`.
        backends_folder: used for the wheel only.

    Raises:
        BackendUnavailableError: there is no server there, or none for this Python version.
    """
    if tritonserver is None:
        return _wheel(backends_folder)
    if not tritonserver.is_file():
        raise BackendUnavailableError(f"tritonserver: {tritonserver} is not an executable file")
    return Installation(tritonserver.resolve())


def wheel_folder() -> Path | None:
    """The server's folder inside the `nvidia-pytriton` wheel; None when it is not installed."""
    spec = importlib.util.find_spec("pytriton")
    folder = Path(spec.origin).parent / "tritonserver" if spec and spec.origin else None
    return folder if folder and (folder / "bin" / "tritonserver").is_file() else None


def _wheel(backends_folder: Path) -> Installation:
    wheel = wheel_folder()
    if wheel is None:
        raise BackendUnavailableError(
            "tritonserver: none here; legal: the wheel (pip install 'minimax-h3-triton[server]'), "
            "or --tritonserver PATH of an installation"
        )
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = wheel / "python_backend_stubs" / version / STUB
    if not stub.is_file():
        known = sorted(folder.name for folder in stub.parent.parent.iterdir())
        raise BackendUnavailableError(
            f"tritonserver: the wheel has no stub for Python {version}; legal: {', '.join(known)}"
        )
    return Installation(
        executable=wheel / "bin" / "tritonserver",
        flags=(f"--backend-directory={backends_folder}", f"--cache-directory={wheel / 'caches'}"),
        library_path=(
            str(wheel.parents[1] / "nvidia_pytriton.libs"),
            str(sysconfig.get_config_var("LIBDIR")),  # the stub links libpython
        ),
        backend_files=(*(wheel / "backends" / "python" / name for name in BACKEND_FILES), stub),
        backend_folder=backends_folder / "python",
    )
