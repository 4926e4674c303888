"""Progress of one job on stderr: a bar on a terminal, a line now and then elsewhere."""

from dataclasses import dataclass
from typing import Protocol, TextIO

from tqdm import tqdm

LINE_EVERY_PERCENT = 10
_AFTER_LOOP = ("video_decoder", "audio_decoder", "muxer", "done")


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The part of a job's description that progress is shown from.

    Attributes:
        done, total: forwards over all clips; `total` is 0 outside the denoising loop.
    """

    state: str
    stage: str
    position: int
    done: int
    total: int

    @classmethod
    def of(cls, job: dict[str, object]) -> "JobProgress | None":
        """Read the answer of `jobs`; None for a job that it does not know (yet)."""
        if job.get("unknown") or "state" not in job:
            return None
        steps, clips = _number(job, "num_steps"), _number(job, "num_clips")
        in_loop = job.get("stage") == "denoiser"
        return cls(
            state=str(job["state"]),
            stage=str(job.get("stage", "")),
            position=_number(job, "position"),
            done=_number(job, "clip") * steps + _number(job, "step") if in_loop else 0,
            total=clips * steps if in_loop else 0,
        )

    @property
    def words(self) -> str:
        """What the job is doing, in words."""
        if self.state == "waiting":
            return f"waiting for a turn, position {self.position}"
        return self.stage


DONE = JobProgress(state="finished", stage="done", position=0, done=0, total=0)


def _number(job: dict[str, object], name: str) -> int:
    value = job.get(name)
    return value if isinstance(value, int) else 0


class ProgressView(Protocol):
    """Shows progress; `close` leaves the stream on a fresh line."""

    def show(self, progress: JobProgress) -> None:
        """Show the newest state."""
        ...

    def close(self) -> None:
        """End the display."""
        ...


class NoView:
    """Shows nothing."""

    def show(self, progress: JobProgress) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Nothing to end."""


class LineView:
    """One line per stage, and per ten percent of the denoising loop."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last = ""

    def show(self, progress: JobProgress) -> None:
        """Print a line if it differs from the last one."""
        line = progress.words
        if progress.total and progress.state == "running":
            percent = 100 * progress.done // progress.total
            line += f" {percent - percent % LINE_EVERY_PERCENT} % of {progress.total} forwards"
        if line != self._last:
            print(line, file=self._stream, flush=True)
            self._last = line

    def close(self) -> None:
        """Every line is already ended."""


class BarView:
    """A tqdm bar over the forwards of all clips, labelled with the stage."""

    def __init__(self, stream: TextIO) -> None:
        self._bar = tqdm(
            file=stream,
            unit="fwd",
            total=1,
            dynamic_ncols=True,
            bar_format="{desc:<32} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}]",
        )

    def show(self, progress: JobProgress) -> None:
        """Move the bar; later stages leave it full."""
        if progress.total:
            self._bar.total = progress.total
            self._bar.n = progress.done
        elif progress.stage in _AFTER_LOOP:
            self._bar.n = self._bar.total
        self._bar.set_description_str(progress.words)

    def close(self) -> None:
        """Leave the bar where it stands."""
        self._bar.close()


def progress_view(stream: TextIO, *, quiet: bool) -> ProgressView:
    """The view that suits a stream."""
    if quiet:
        return NoView()
    return BarView(stream) if stream.isatty() else LineView(stream)
