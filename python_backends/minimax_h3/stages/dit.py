"""The DiTs: sessions behind start / step / end. State lives here, where the compute is.

One model for each partition. They differ in nothing but the weights they load.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from minimax_h3.attention.base import select
from minimax_h3.caches.adaln_table import AdaLNTableCache
from minimax_h3.core.constants import (
    AUDIO_ROW_WIDTH,
    TASK_FL2VA,
    TASK_REF2VA,
    VIDEO_ROW_WIDTH,
)
from minimax_h3.core.contracts import models_of
from minimax_h3.core.errors import (
    H3Error,
    InvalidRequestError,
    NotAvailableError,
    UnknownSessionError,
)
from minimax_h3.core.plan import Plan
from minimax_h3.denoise.session import (
    Conditioning,
    DenoiseSession,
    DitRuntime,
    select_euler_step,
)
from minimax_h3.denoise.session_table import SessionTable
from minimax_h3.dit.loading import load_transformer
from minimax_h3.ops.row_ops import select_row_ops
from minimax_h3.stages.base import BatchStage, StageContext, StageRequest, text_tensor
from minimax_h3.stages.checkpoint import open_checkpoint
from minimax_h3.stages.job_client import JobClient
from minimax_h3.stages.offload import DeviceWeights, Moves, device_weights
from minimax_h3.stages.pace import Pace
from minimax_h3.stages.torch_device import Placement, choose_placement
from minimax_h3.stages.warm_up import warm_up

CONDITIONING = ("PROMPT_EMBEDS", "TEXT_TAGS", "CONDITION_ROWS", "AUDIO_CONDITION_ROWS")
ORPHANS_EVERY_S = 0.5
Answer = dict[str, NDArray[np.generic]]


class DitStage:
    """Holds one DiT and a session per running clip.

    A step that is merged with others of the same key runs one forward after another; results equal
    solo runs because nothing is shared but the weights.
    """

    name: ClassVar[str] = "dit_fl2va"
    partition: ClassVar[str] = TASK_FL2VA

    def __init__(
        self,
        context: StageContext,
        runtime: DitRuntime,
        placement: Placement,
        weights: DeviceWeights,
        sessions: SessionTable,
        is_known: Callable[[str], bool],
    ) -> None:
        self._log = context.log
        self._meter = context.meter
        self._runtime = runtime
        self._placement = placement
        self._sessions = sessions
        self._is_known = is_known
        self._step_delay_s = context.config.test_step_delay_ms / 1000.0
        self._hang_at_step = context.config.test_hang_at_step
        self._pace = Pace.on(placement.device)
        self._weights = weights
        self._costs: dict[str, Moves] = {}  # of the weights, by session

    @classmethod
    def load(cls, context: StageContext) -> BatchStage:
        """Load the partition's weights and choose the attention backend.

        A server of the other task type gets a stage that holds nothing and refuses everything:
        `h3 serve` leaves the model out, a plain tritonserver loads whatever is in the repository.
        """
        config = context.config
        if cls.name not in models_of(config.task_type):
            return AbsentDit.load(context)
        placement = choose_placement(config, context.log)
        manifest = open_checkpoint(context, cls.partition)
        device = placement.device
        attention, reason = select(
            config.attention, device, placement.dtype, manifest.dit_config.head_dim
        )
        context.log.info("attention %s: %s", attention.name, reason)
        row_ops, why = select_row_ops(config.row_ops, device)
        context.log.info("row operations %s: %s", row_ops.name, why)
        on_host = config.adaln_weights == "host" or (
            config.adaln_weights == "auto" and device.type == "cuda"
        )
        context.log.info("AdaLN weights on the %s", "host" if on_host else "device")
        weights = device_weights(context, placement)
        with weights.loading():
            model = load_transformer(manifest, device, placement.dtype, adaln_on_host=on_host)
            weights.adopt(model)
            runtime = DitRuntime(
                model,
                attention,
                AdaLNTableCache(),
                manifest.digest,
                row_ops,
                select_euler_step(row_ops),
            )
            warm_up(context, placement, lambda plan: _one_forward(runtime, plan))
        jobs = JobClient(context.call, context.log)
        sessions = SessionTable(config.session_lease_s)
        threading.Thread(
            target=end_orphans,
            args=(sessions, jobs, context.log),
            name="end-orphans",
            daemon=True,
        ).start()
        return cls(
            context,
            runtime,
            placement,
            weights,
            sessions,
            lambda session_id: _session_known(jobs, session_id, context.log),
        )

    def run_batch(self, requests: Sequence[StageRequest]) -> list[Answer | H3Error]:
        """Serve the operations of one `execute()`; each fails or succeeds on its own."""
        if self._step_delay_s and any(request.text("OP") == "step" for request in requests):
            time.sleep(self._step_delay_s)
        answers = [self._serve(request) for request in requests]
        self._meter.set("h3_sessions", len(self._sessions), model=self.name)
        return answers

    def _serve(self, request: StageRequest) -> Answer | H3Error:
        operations = {
            "start": self._start,
            "step": self._step,
            "end": self._end,
            "status": self._status,
        }
        operation = request.text("OP")
        if operation not in operations:
            legal = ", ".join(operations)
            return InvalidRequestError(f"OP: {operation[:50]!r} is not legal; legal: {legal}")
        session_id = request.text("SESSION")
        try:
            return operations[operation](request, session_id)
        except H3Error as error:
            return error
        except Exception as error:  # noqa: BLE001  # one session's fault must not fail the others'
            self._log.error("session %s: %s failed", session_id, operation, exc_info=error)
            return H3Error(f"{operation} failed: {type(error).__name__}; see the server log")

    def _start(self, request: StageRequest, session_id: str) -> Answer:
        _require(request, "start", "SESSION_PLAN", *CONDITIONING)
        self._sessions.sweep(self._is_known)
        if not len(self._sessions):
            self._placement.watch_peak()
        wanted = json.loads(request.text("SESSION_PLAN"))
        plan, seed = Plan.from_json(json.dumps(wanted["plan"])), int(wanted["seed"])
        # Triton's memory ends with this call, and the session is prepared after it.
        embeds, tags, visual, sound = (
            torch.from_numpy(request.array(name)[0].copy()) for name in CONDITIONING
        )
        conditioning = Conditioning(embeds, tags, visual, sound)
        cost = Moves()

        def prepare() -> DenoiseSession:
            with self._weights.on_device() as brought:
                cost.add(brought)
                return DenoiseSession.prepare(self._runtime, plan, seed, conditioning)

        self._sessions.start(session_id, prepare)
        self._costs[session_id] = cost
        for gone in self._costs.keys() - set(self._sessions.ids()):
            del self._costs[gone]
        return _state(ready=False)

    def _step(self, request: StageRequest, session_id: str) -> Answer:
        _require(request, "step", "STEP")
        step = int(request.array("STEP").reshape(-1)[0])
        if self._hang_at_step and step == self._hang_at_step:
            threading.Event().wait()
        with self._weights.on_device() as brought:
            self._costs.get(session_id, Moves()).add(brought)
            began = time.perf_counter()
            if not self._sessions.step(session_id, step):
                return _state(ready=False)
            self._pace.launched()
            compute_s = time.perf_counter() - began + self._step_delay_s
        facts = (
            {
                "attention": self._runtime.attention.name,
                "row_ops": self._runtime.row_ops.name,
                **self._placement.facts(),
            }
            if not step
            else {}
        )
        self._meter.observe("h3_step_seconds", compute_s, model=self.name)
        self._meter.add("h3_forwards_total", model=self.name)
        return _state(ready=True, step=step, compute_s=compute_s, facts=facts)

    def _status(self, request: StageRequest, session_id: str) -> Answer:
        del request, session_id
        table = self._sessions
        return _state(
            sessions=len(table), started=table.started, ended=table.ended, dropped=table.dropped
        )

    def _end(self, request: StageRequest, session_id: str) -> Answer:
        wanted = "WANT_LATENTS" in request.tensors and bool(request.array("WANT_LATENTS").all())
        began = time.perf_counter()
        latents = self._sessions.end(session_id, wanted)
        cost = self._costs.pop(session_id, Moves())
        if not len(self._sessions):
            self._placement.release_cached()
        if latents is None:
            return _state(ready=False)
        video, audio = latents
        return {
            # On a GPU the last step was under way until now.
            **_state(
                ready=True,
                tail_s=time.perf_counter() - began,
                facts={"peak_bytes": self._placement.peak_bytes(), **self._weights.facts(cost)},
            ),
            "VIDEO_LATENTS": video[None],
            "AUDIO_LATENTS": audio[None],
        }


class Ref2vaDitStage(DitStage):
    """The DiT of the Ref2VA partition."""

    name: ClassVar[str] = "dit_ref2va"
    partition: ClassVar[str] = TASK_REF2VA


class AbsentDit:
    """Stands where a DiT would be that this server does not hold."""

    name: ClassVar[str] = "absent_dit"

    def __init__(self, model: str, task_type: str) -> None:
        self._refusal = (
            f"{model}: holds no weights, because task_type is {task_type!r}; "
            "legal: a server of another task_type"
        )

    @classmethod
    def load(cls, context: StageContext) -> "AbsentDit":
        """Load nothing; the model is ready and refuses by name."""
        absent = cls(context.model_folder.name, context.config.task_type)
        context.log.info("%s", absent._refusal)
        return absent

    def run_batch(self, requests: Sequence[StageRequest]) -> list[Answer | H3Error]:
        """Refuse every operation."""
        return [NotAvailableError(self._refusal) for _ in requests]


def end_orphans(sessions: SessionTable, jobs: JobClient, log: logging.Logger) -> None:
    """End the sessions whose job has ended while its loop could not end them; never returns.

    A loop that died in mid-job says nothing any more, so the DiT asks.
    """
    while True:
        time.sleep(ORPHANS_EVERY_S)
        held = sessions.ids()
        orphans = jobs.say({"op": "orphans", "sessions": held}).get("orphans") if held else None
        for session_id in orphans if isinstance(orphans, list) else []:
            with suppress(UnknownSessionError):  # ended meanwhile
                sessions.end(session_id, want_latents=False)
                log.warning("ended session %s, whose job has ended without it", session_id)


def _one_forward(runtime: DitRuntime, plan: Plan) -> None:
    """A whole session of one step, its text included."""
    conditioning = Conditioning(
        torch.zeros(plan.text_rows, runtime.model.config.text_dim),
        torch.ones(plan.text_rows, dtype=torch.int64),
        torch.zeros(0, VIDEO_ROW_WIDTH),
        torch.zeros(0, AUDIO_ROW_WIDTH),
    )
    session = DenoiseSession.prepare(runtime, plan, plan.seeds[0], conditioning)
    session.step(0)


def _require(request: StageRequest, operation: str, *names: str) -> None:
    missing = [name for name in names if name not in request.tensors]
    if missing:
        raise InvalidRequestError(
            f"{', '.join(missing)}: absent; legal: present with OP {operation}"
        )


def _state(**values: object) -> Answer:
    return {"STATE": text_tensor(json.dumps(values))[None]}


def _session_known(jobs: JobClient, session_id: str, log: logging.Logger) -> bool:
    """Ask `jobs`; when it is away nothing is dropped."""
    try:
        return bool(jobs.tell({"op": "session_known", "session_id": session_id})["known"])
    except H3Error as error:
        log.warning("kept session %s, jobs is away: %s", session_id, error)
        return True
