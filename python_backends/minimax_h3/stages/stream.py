"""`minimax_h3_stream`: the ensemble with its progress, for clients that want to watch and to leave.

Every response but the last carries one event in EVENT, a JSON object with `event` and the state of
the job. The last carries the event `result` with MP4 and METADATA, or is an error, which the event
`error` has named before it. A client that cancels or goes away cancels the job.

A stream that finds no free place waits here and is told its position. One thread asks `jobs` about
all streams at once; each running ensemble blocks a thread of its own.
"""

import logging
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from minimax_h3.core.canvas import RELEASED, CanvasRule, canvas_from_ratio
from minimax_h3.core.config import StageConfig
from minimax_h3.core.contracts import (
    ENSEMBLE,
    JOB_ID_PARAMETER,
    RECEIVED_AT_PARAMETER,
    STREAM_ENSEMBLES,
)
from minimax_h3.core.errors import (
    RETRY_AFTER_S,
    CancelledError,
    CapacityError,
    DeadlineExceededError,
    H3Error,
    InvalidRequestError,
    error_of,
)
from minimax_h3.core.plan import packed_rows
from minimax_h3.core.request import GenerationRequest
from minimax_h3.stages.base import Answers, ModelCaller, StageContext, StageRequest, Tensors
from minimax_h3.stages.job_client import REFUSALS, JobClient
from minimax_h3.stages.preprocess import check_request_id, read_fields
from minimax_h3.stages.stream_events import (
    RESULT_FORMS,
    error_event,
    event,
    progress_events,
    response_of,
    result_response,
    state_event,
)
from minimax_h3.weights.manifest import stated_canvas

TICK_S = 0.05
HEARTBEAT_S = 2.0
# Whether a waiting client is still there, which is a round trip to the server. That of a running
# ensemble is asked every round: each step after it has gone is work for nobody.
ASK_WAITING_EVERY_S = 0.5


@dataclass(slots=True)
class Stream:
    """One request: what it wants, where its answers go, and what it has been told.

    Attributes:
        facts: what `jobs` needs to know about the job; the job id is made here.
        tensors: inputs of the ensemble.
        result_as: one of `RESULT_FORMS`.
        enqueued, running, ended: how far it got: known to `jobs`, ensemble started, last response.
        seen: marks of `jobs` that became events.
        position: the one that was told last.
        lock: keeps its responses in order, and none after the last.
    """

    facts: dict[str, object]
    tensors: Tensors
    result_as: str
    deadline_s: float | None
    answers: Answers
    received_at: float
    enqueued: bool = False
    running: bool = False
    ended: bool = False
    seen: int = 0
    position: int = 0
    told_at: float = 0.0
    client_asked_at: float = 0.0
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def job_id(self) -> str:
        """The job's id."""
        return str(self.facts["job_id"])

    def tell(self, spoken: Mapping[str, object]) -> None:
        """Send one event."""
        with self.lock:
            if not self.ended:
                self.answers.send(response_of(spoken))
                self.told_at = time.monotonic()

    def fail(self, error: H3Error) -> None:
        """Name an error in an event and end with it."""
        with self.lock:
            self.tell(error_event(self.job_id, error))
            self.refuse(error)

    def refuse(self, error: H3Error) -> None:
        """End with an error. As the only response it decides the status code over HTTP."""
        with self.lock:
            if not self.ended:
                self.ended = True
                self.answers.fail(error)


class StreamStage:
    """Runs ensembles for streams, at most `STREAM_ENSEMBLES` at a time."""

    name: ClassVar[str] = "minimax_h3_stream"

    def __init__(
        self,
        config: StageConfig,
        call: ModelCaller,
        jobs: JobClient,
        log: logging.Logger,
        canvas: CanvasRule = RELEASED,
    ) -> None:
        self._config = config
        self._canvas = canvas
        self._call = call
        self._jobs = jobs
        self._log = log
        self._most_running = min(config.max_jobs, STREAM_ENSEMBLES)
        self._streams: list[Stream] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._ticker: threading.Thread | None = None

    @classmethod
    def load(cls, context: StageContext) -> "StreamStage":
        """Needs the way to call other models, and the checkpoint's canvas to tell rows by."""
        jobs = JobClient(context.call, context.log)
        canvas = stated_canvas(context.checkpoint_path)
        return cls(context.config, context.call, jobs, context.log, canvas)

    def open(self, request: StageRequest, answers: Answers) -> None:
        """Take a stream on.

        Raises:
            InvalidRequestError, NotAvailableError: a field is wrong; see `core.request`.
            CapacityError: too many streams wait already.
        """
        stream = read_stream(request, answers, self._config, self._canvas)
        with self._lock:
            open_streams = sum(not other.ended for other in self._streams)
            most = self._most_running + self._config.stream_jobs
            if open_streams >= most:
                raise CapacityError(
                    f"{open_streams} streams run or wait, the most this server keeps; "
                    f"retry after {RETRY_AFTER_S:g} s"
                )
            self._streams.append(stream)
            if self._ticker is None:
                self._ticker = threading.Thread(target=self._tick, name="ticker", daemon=True)
                self._ticker.start()
        self._wake.set()

    def close(self) -> None:
        """Stop asking; ensembles that run end with the server."""
        self._closed = True
        self._wake.set()

    # --- the one thread that asks -----------------------------------------------------------

    def _tick(self) -> None:
        while not self._closed:
            self._wake.wait(TICK_S if self._streams else None)
            self._wake.clear()
            with self._lock:
                self._streams = [stream for stream in self._streams if not stream.ended]
                streams = list(self._streams)
            try:
                self._attend(streams)
            except Exception:  # noqa: BLE001  # one bad round must not silence every stream for good
                self._log.exception("a round over %d streams failed", len(streams))

    def _attend(self, streams: Sequence[Stream]) -> None:
        """One round: clients that left, deadlines, admission, and what happened meanwhile."""
        for stream in streams:
            if not stream.enqueued:
                self._enqueue(stream)
            if not stream.ended:
                self._look_after(stream)
        self._follow([stream for stream in streams if not stream.ended])

    def _enqueue(self, stream: Stream) -> None:
        try:
            self._jobs.say({**stream.facts, "op": "enqueue"}, refusals=REFUSALS)
        except H3Error as error:
            stream.refuse(error)
            return
        stream.enqueued = True
        stream.tell(event("accepted", stream.job_id, request_id=stream.facts["alias"]))

    def _look_after(self, stream: Stream) -> None:
        """Stop what nobody waits for. A running ensemble sees its deadline by itself."""
        now = time.monotonic()
        if stream.running or now - stream.client_asked_at >= ASK_WAITING_EVERY_S:
            stream.client_asked_at = now
            if stream.answers.is_cancelled():
                self._jobs.say({"op": "cancel", "id": stream.job_id})
                if not stream.running:
                    # Its job may have a place already, and nobody else would ever end it.
                    self._give_up(
                        stream, CancelledError(f"job {stream.job_id}: the client has gone")
                    )
        limit = stream.deadline_s
        if limit is not None and not stream.running and time.time() - stream.received_at > limit:
            self._give_up(
                stream, DeadlineExceededError(f"deadline_s: {limit:g} s have passed in the queue")
            )

    def _follow(self, streams: Sequence[Stream]) -> None:
        """Ask `jobs` about streams, tell each what happened, and start those it lets in."""
        if not streams:
            return
        asked = [
            {**stream.facts, "queued": not stream.running, "seen": stream.seen}
            for stream in streams
        ]
        answer = self._jobs.say({"op": "watch", "jobs": asked})
        described = answer.get("jobs")
        if not isinstance(described, list) or len(described) != len(streams):
            self._go_on_alone(streams)
            return
        for stream, facts in zip(streams, described, strict=True):
            with stream.lock:
                self._tell_state(stream, facts)

    def _tell_state(self, stream: Stream, described: Mapping[str, object]) -> None:
        for spoken in progress_events(stream.job_id, described):
            stream.tell(spoken)
        seen = described.get("seen")
        stream.seen = seen if isinstance(seen, int) else stream.seen
        error = described.get("error")
        if isinstance(error, dict):
            stream.fail(error_of(error["kind"], error["message"]))
            return
        position = described.get("position")
        if isinstance(position, int) and position != stream.position:
            stream.position = position
            stream.tell(state_event("position", stream.job_id, described))
        if time.monotonic() - stream.told_at >= HEARTBEAT_S:
            stream.tell(state_event("heartbeat", stream.job_id, described))
        if not stream.running and described.get("state") != "queued":
            self._start(stream)

    def _go_on_alone(self, streams: Sequence[Stream]) -> None:
        """`jobs` is away: streams still hear that the server lives, and enter in their order."""
        running = sum(stream.running for stream in streams)
        for stream in streams:
            if not stream.running and running < self._most_running:
                running += 1
                self._start(stream)
            if time.monotonic() - stream.told_at >= HEARTBEAT_S:
                elapsed = round(time.time() - stream.received_at, 3)
                stream.tell(event("heartbeat", stream.job_id, elapsed_s=elapsed))

    # --- one thread per running ensemble ----------------------------------------------------

    def _start(self, stream: Stream) -> None:
        """Run the ensemble, if one more call may block; else in a later round."""
        if sum(other.running and not other.ended for other in self._streams) < self._most_running:
            stream.running = True
            threading.Thread(target=self._run, args=(stream,), daemon=True).start()

    def _run(self, stream: Stream) -> None:
        try:
            made = self._call(
                ENSEMBLE.name,
                stream.tensors,
                ["MP4", "METADATA"],
                request_id=str(stream.facts["alias"]),
                parameters={
                    JOB_ID_PARAMETER: stream.job_id,
                    RECEIVED_AT_PARAMETER: repr(stream.received_at),
                },
            )
            self._follow([stream])  # the last steps come before the result
            metadata = made["METADATA"].reshape(-1)[0].decode()
            last = result_response(stream.job_id, made["MP4"], metadata, stream.result_as)
            with stream.lock:
                if not stream.ended:
                    stream.ended = True
                    stream.answers.send(last, last=True)
        except H3Error as error:
            self._give_up(stream, error)
        except Exception as error:  # noqa: BLE001  # the client must not wait for ever
            self._log.exception("job %s: the stream failed", stream.job_id)
            self._give_up(stream, H3Error(f"unexpected {type(error).__name__}; see the server log"))
        finally:
            self._wake.set()

    def _give_up(self, stream: Stream, error: H3Error) -> None:
        """End a stream and free the place of its job, whoever failed without a word."""
        facts = {"stage": self.name, "kind": error.kind, "message": str(error)}
        self._jobs.say({"op": "fail", "job_id": stream.job_id, **facts})
        stream.fail(error)


def read_stream(
    request: StageRequest, answers: Answers, config: StageConfig, canvas: CanvasRule = RELEASED
) -> Stream:
    """Validate a request; nothing that is wrong may wait in the queue first.

    Raises:
        InvalidRequestError, NotAvailableError: names the field, the value and what is legal.
    """
    check_request_id(request)
    tensors = {name: tensor for name, tensor in request.tensors.items() if name != "RESULT_AS"}
    fields = read_fields(StageRequest(tensors, request.request_id))
    generation = GenerationRequest.from_fields(fields, canvas)
    result_as = request.text("RESULT_AS") if "RESULT_AS" in request.tensors else RESULT_FORMS[0]
    if result_as not in RESULT_FORMS:
        raise InvalidRequestError(
            f"RESULT_AS: {result_as[:50]!r} is not legal; legal: {', '.join(RESULT_FORMS)}"
        )
    if result_as == "handle" and not config.results_bytes:
        raise InvalidRequestError("RESULT_AS: handle is not legal; this server keeps no results")
    if generation.return_frames:
        raise InvalidRequestError(
            f"return_frames: true is not legal in a stream; legal: false, or {ENSEMBLE.name}"
        )
    facts: dict[str, object] = {
        "job_id": uuid.uuid4().hex,
        "alias": request.request_id,
        "task": generation.task,
        "num_steps": generation.num_points - 1,
        "num_clips": generation.num_outputs,
        "rows": guess_rows(generation, canvas),
        "priority": generation.priority,
        "client": generation.client,
        "deadline_s": generation.deadline_s,
        "streamed": True,
    }
    return Stream(facts, tensors, result_as, generation.deadline_s, answers, time.time())


def guess_rows(generation: GenerationRequest, canvas: CanvasRule = RELEASED) -> int:
    """Packed rows, until the prompt is tokenised and the files are measured.

    English has about four bytes a token; a canvas that the first keyframe will set is taken for the
    default one.
    """
    if not generation.width:
        width, height = canvas_from_ratio(canvas.ratio, canvas)
        generation = replace(generation, width=width, height=height)
    return packed_rows(generation, len(generation.prompt.encode()) // 4)
