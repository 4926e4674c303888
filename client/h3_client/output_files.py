"""Where finished clips go: names, checks before the work starts, and writing in one piece."""

import os
from collections.abc import Sequence
from pathlib import Path


def clip_paths(output: Path, count: int) -> list[Path]:
    """`out.mp4` for one clip; `out-0.mp4`, `out-1.mp4`, ... for several."""
    if count == 1:
        return [output]
    return [output.with_name(f"{output.stem}-{clip}{output.suffix}") for clip in range(count)]


def check_writable(paths: Sequence[Path]) -> None:
    """Refuse places that cannot take a file, before minutes of work are spent on it.

    Raises:
        OSError: the folder is missing or not writable, or the path is not a plain file.
    """
    for path in paths:
        folder = path.parent
        if not folder.is_dir():
            raise NotADirectoryError(f"{path}: there is no folder {folder}")
        if path.is_dir():
            raise IsADirectoryError(f"{path}: is a folder; name a file, for example {path}/out.mp4")
        if path.exists() and not path.is_file():
            raise FileExistsError(f"{path}: exists and is not a plain file")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"{path}: the folder {folder} is not writable")


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file under another name and move it into place: it is whole or absent."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
