"""Files of finished jobs on disk, bounded by age and by bytes; the oldest go first.

One folder a job: `metadata.json` and the clips as `0.mp4`, `1.mp4`, ... A job's folder appears
whole or not at all. Only one process writes; any may read.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from minimax_h3.core.errors import UnknownResultError

KEEP_S = 3600.0
_METADATA = "metadata.json"
_UNFINISHED = ".part"


@dataclass(frozen=True, slots=True)
class KeptResult:
    """What a finished job made."""

    clips: list[bytes]
    metadata: str


class ResultStore:
    """Results by job id.

    Args:
        folder: made when the first result is kept.
        keep_bytes: most bytes of clips; 0 keeps nothing.
        keep_s: seconds after which a result is forgotten.
        clock: wall-clock seconds, as the file system counts them.
    """

    def __init__(
        self,
        folder: Path,
        keep_bytes: int,
        keep_s: float = KEEP_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._keep_bytes = keep_bytes
        self._keep_s = keep_s
        self._clock = clock

    def put(self, job_id: str, clips: Sequence[bytes], metadata: str) -> bool:
        """Keep a result; False when it alone is larger than all that may be kept.

        Raises:
            OSError: the disk is full or the folder cannot be written.
        """
        size = sum(len(clip) for clip in clips)
        if size > self._keep_bytes or not self._keep_bytes:
            return False
        self.prune(self._keep_bytes - size)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self._is_own():
            raise PermissionError(f"{self._folder} belongs to another user")
        part = self._folder / f"{job_id}{_UNFINISHED}"
        part.mkdir(mode=0o700)
        try:
            for index, clip in enumerate(clips):
                (part / f"{index}.mp4").write_bytes(clip)
            (part / _METADATA).write_text(metadata, encoding="utf-8")
            part.rename(self._folder / job_id)
        except OSError:
            shutil.rmtree(part, ignore_errors=True)
            raise
        return True

    def get(self, name: str) -> KeptResult:
        """The result of a job, by its id or by the request id of its client.

        Raises:
            UnknownResultError: there is none, or no longer.
        """
        folder = self._find(name)
        try:
            metadata = (folder / _METADATA).read_text(encoding="utf-8")
            clips = sorted(folder.glob("*.mp4"), key=lambda file: int(file.stem))
            return KeptResult([clip.read_bytes() for clip in clips], metadata)
        except OSError as error:  # pushed out while it was read
            raise _unknown(name) from error

    def prune(self, keep_bytes: int) -> None:
        """Forget what is too old, and the oldest until `keep_bytes` are left."""
        kept = 0
        for written_at, size, name in sorted(self._held(), reverse=True):
            kept += size
            if kept > keep_bytes or self._clock() - written_at > self._keep_s:
                shutil.rmtree(self._folder / name, ignore_errors=True)

    def _find(self, name: str) -> Path:
        fresh = [
            self._folder / held
            for written_at, _, held in sorted(self._held(), reverse=True)
            if self._clock() - written_at <= self._keep_s and not held.endswith(_UNFINISHED)
        ]
        for folder in fresh:
            if folder.name == name:
                return folder
        for folder in fresh:
            if name and _alias(folder) == name:
                return folder
        raise _unknown(name)

    def _is_own(self) -> bool:
        """Whether the folder is there and this user's, not one that somebody else put there."""
        return self._folder.is_dir() and self._folder.stat().st_uid == os.getuid()

    def _held(self) -> list[tuple[float, int, str]]:
        """When it was written, bytes and name of each result, unfinished ones too.

        Names, not paths: the list is as long as there are results, and a path takes five times as
        much memory.
        """
        folders = self._folder.iterdir() if self._is_own() else ()
        return [held for folder in folders if (held := self._measure(folder.name))]

    def _measure(self, name: str) -> tuple[float, int, str] | None:
        folder = self._folder / name
        try:
            size = sum(file.stat().st_size for file in os.scandir(folder))
            return folder.stat().st_mtime, size, name
        except FileNotFoundError:  # pushed out meanwhile
            return None


def _alias(folder: Path) -> str:
    try:
        return str(json.loads((folder / _METADATA).read_text(encoding="utf-8"))["request_id"])
    except (OSError, ValueError, KeyError):
        return ""


def _unknown(name: str) -> UnknownResultError:
    return UnknownResultError(
        f"JOB: no result of {name[:128]!r} is kept; results are kept for {KEEP_S / 3600:g} h, "
        "fewer when newer ones need the room"
    )
