"""One job as the table knows it."""

from collections.abc import Collection
from dataclasses import dataclass, field

QUEUED, WAITING, RUNNING = "queued", "waiting", "running"
FINISHED, FAILED, CANCELLED = "finished", "failed", "cancelled"
PLACED = (WAITING, RUNNING)
ACTIVE = (QUEUED, WAITING, RUNNING)
STREAM_MODEL = "minimax_h3_stream"
LOOP = "denoiser"

# Stages of one row work at the same time; those of the next follow when all of them are done.
_ROWS = (
    ("preprocess",),
    ("text_encoder", "condition_encoder"),
    ("denoiser",),
    ("video_decoder", "audio_decoder"),
    ("muxer",),
)
MAX_MARKS = 8192


@dataclass(slots=True)
class Mark:
    """A moment of a job: it stood at `step` of `num_steps` of a stage, seconds after its start."""

    stage: str
    step: int
    num_steps: int
    clip: int
    at_s: float

    def as_list(self) -> list[object]:
        """For an answer: stage, step, steps, clip, seconds."""
        return [self.stage, self.step, self.num_steps, self.clip, round(self.at_s, 4)]


@dataclass(slots=True)
class Job:
    """State, progress and facts of a job.

    Attributes:
        num_steps: forwards of one clip; `rows` are the packed rows of one forward.
        slot: its turn at the DiT, or None.
        awaiting: models that owe a word about it: those that work on it or are next to.
        dit: the model that holds its session, or empty.
        loop_pid: the denoiser's process that runs its loop, or 0.
        streamed: a stream waits for it.
        placed_at: when it got a place; for a queued job, when it joined the queue.
        stop: kind and message that every worker is told at its next word, or None.
        marks: what happened so far.
    """

    job_id: str
    alias: str
    task: str
    num_steps: int
    num_clips: int
    created_at: float
    touched_at: float
    placed_at: float
    rows: int = 0
    priority: str = "normal"
    client: str = ""
    deadline_s: float | None = None
    state: str = RUNNING
    stage: str = "preprocess"
    step: int = 0
    stage_steps: int = 0
    clip: int = 0
    slot: int | None = None
    dit: str = ""
    loop_pid: int = 0
    streamed: bool = False
    stop: tuple[str, str] | None = None
    ended_at: float | None = None
    asked_turn_at: float | None = None
    loop_ended_at: float | None = None
    error: dict[str, str] | None = None
    sessions: set[str] = field(default_factory=set)
    awaiting: set[str] = field(default_factory=lambda: {*_ROWS[0], *_ROWS[1]})
    marks: list[Mark] = field(default_factory=list)

    @property
    def steps_done(self) -> int:
        """Forwards over all clips."""
        return self.clip * self.num_steps + self.step if self.stage == "denoiser" else 0

    @property
    def steps_left(self) -> int:
        """Forwards that are still to be run over all clips."""
        if self.loop_ended_at is not None:
            return 0
        return max(self.num_clips * self.num_steps - self.steps_done, 0)

    def mark(self, now: float) -> None:
        """Note where the job stands."""
        if len(self.marks) < MAX_MARKS:
            self.marks.append(
                Mark(self.stage, self.step, self.stage_steps, self.clip, now - self.created_at)
            )

    def enters(self, stage: str) -> None:
        """A stage spoke: all rows before its own are done."""
        row = _row_of(stage)
        if not self.awaiting & set(row):
            self.awaiting = set(row)
        for earlier in _ROWS[: _ROWS.index(row)]:
            self.awaiting -= set(earlier)

    def leaves(self, stage: str) -> None:
        """A stage is done; after the last of its row the next row is awaited."""
        self.awaiting.discard(stage)
        row = _row_of(stage)
        following = _ROWS.index(row) + 1
        if not self.awaiting and following < len(_ROWS):
            self.awaiting = set(_ROWS[following])

    def depends_on(self, model: str, pids: Collection[int] = ()) -> bool:
        """Whether the death of a model's processes ends the job.

        Triton binds a request to the models of its later stages when it arrives: it never reaches
        their new processes, so a job ends with a model that it has yet to come to. Only the loop
        has several processes, of which those that live go on.

        Args:
            model: whose processes died.
            pids: those processes; empty means all of the model's.
        """
        if model == STREAM_MODEL:
            return self.streamed
        if self.state == QUEUED:
            return False
        if model == LOOP:
            return model in self.awaiting and (self.loop_pid in pids or not pids)
        return model in self.awaiting or model in self._later() or (model == self.dit != "")

    def _later(self) -> set[str]:
        """Models of the rows after those that are awaited."""
        reached = [index for index, row in enumerate(_ROWS) if self.awaiting & set(row)]
        following = _ROWS[max(reached) + 1 :] if reached else ()
        return {model for row in following for model in row}

    def stop_answer(self) -> dict[str, object]:
        """What a worker is told: whether to stop, and why."""
        if self.stop is None:
            return {"cancel": False}
        return {"cancel": True, "kind": self.stop[0], "message": self.stop[1]}


def _row_of(stage: str) -> tuple[str, ...]:
    return next((row for row in _ROWS if stage in row), _ROWS[0])
