"""The denoiser: one job's loop over the DiT. Control only: numpy, no torch, no weights.

Each step is two calls to other models: `jobs` (progress, and the cancel boundary) and the DiT.
Every session that was sent `start` is sent `end`, whatever happens.
"""

import json
import os
import random
import statistics
import time
import uuid
from dataclasses import asdict, dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from minimax_h3.core.contracts import ROUTES
from minimax_h3.core.errors import H3Error, UnknownSessionError
from minimax_h3.core.metrics import NO_METER, Meter
from minimax_h3.core.plan import Plan
from minimax_h3.stages.base import ModelCaller, StageContext, StageRequest, Tensors, text_tensor
from minimax_h3.stages.job_client import JobClient, check_deadline, raise_if_stopped

TURN_POLL_S = 0.05  # a waiting job sees its cancel within this time
READY_POLL_S = 0.005
FORWARDED = ("PROMPT_EMBEDS", "TEXT_TAGS", "CONDITION_ROWS", "AUDIO_CONDITION_ROWS")


@dataclass(slots=True)
class StepTimes:
    """Seconds of each step: the whole round trip, and what the DiT says it computed.

    A GPU is one step behind its host, so the last step of a clip ends in `tail_s`.
    """

    round_trip_s: list[float] = field(default_factory=list)
    compute_s: list[float] = field(default_factory=list)
    jobs_s: list[float] = field(default_factory=list)
    tail_s: float = 0.0

    def summary(self) -> dict[str, float]:
        """Medians, and the sum of compute; the difference is the price of the loop."""
        return {
            "step_s": round(statistics.median(self.compute_s), 6),
            "dit_call_overhead_s": round(
                statistics.median(
                    whole - compute
                    for whole, compute in zip(self.round_trip_s, self.compute_s, strict=True)
                ),
                6,
            ),
            "jobs_call_s": round(statistics.median(self.jobs_s), 6),
            "compute_s": round(sum(self.compute_s) + self.tail_s, 6),
        }


class DenoiserStage:
    """Runs the denoising loop of one job after another; parallelism is instances."""

    name: ClassVar[str] = "denoiser"

    def __init__(self, call: ModelCaller, jobs: JobClient, meter: Meter = NO_METER) -> None:
        self._call = call
        self._jobs = jobs
        self._meter = meter

    @classmethod
    def load(cls, context: StageContext) -> "DenoiserStage":
        """Needs nothing but the way to call other models."""
        return cls(context.call, JobClient(context.call, context.log), context.meter)

    def run(self, request: StageRequest) -> dict[str, NDArray[np.generic]]:
        """Denoise every clip of a job.

        Raises:
            CancelledError: the job was cancelled; the work stopped at the last boundary.
            H3Error: the DiT refused or failed.
        """
        plan = Plan.from_json(request.text("PLAN"))
        loop = _Loop(self._call, self._jobs, plan, ROUTES[request.text("TASK")])
        began = time.monotonic()
        conditioning = {name: request.tensors[name] for name in FORWARDED}
        try:
            loop.wait_for_turn()
            waited = time.monotonic() - began
            self._meter.observe("h3_queue_wait_seconds", waited)
            clips = [
                loop.run_clip(clip, seed, conditioning) for clip, seed in enumerate(plan.seeds)
            ]
        finally:
            self._jobs.ask(plan, "release")
        facts = {
            "seconds": round(time.monotonic() - began - waited, 6),
            "wait_s": round(waited, 6),
            "dit": loop.model,
            "calls_per_step": 2,
            **loop.times.summary(),
            **loop.facts,
        }
        return {
            "VIDEO_LATENTS": np.stack([video for video, _ in clips]),
            "AUDIO_LATENTS": np.stack([audio for _, audio in clips]),
            "DENOISER_INFO": text_tensor(json.dumps(facts)),
        }


class _Loop:
    """One job's turn, sessions and steps."""

    def __init__(self, call: ModelCaller, jobs: JobClient, plan: Plan, model: str) -> None:
        self._call = call
        self._jobs = jobs
        self._plan = plan
        self.model = model
        self.times = StepTimes()
        self.facts: dict[str, object] = {}
        self._session_id = ""
        # Jobs of different slots never merge into one execute(), so that a step of one job is
        # the scheduling and cancelling unit. Without `jobs` any key will do.
        self._merge_key = random.randint(65, 128)  # not a secret

    def wait_for_turn(self) -> None:
        while True:
            answer = self._jobs.ask(self._plan, "turn", pid=os.getpid())
            raise_if_stopped(answer, "the queue")
            check_deadline(self._plan, "the queue")
            if answer.get("go", True):  # no answer: `jobs` is away, and the job goes on
                slot = answer.get("slot")
                self._merge_key = slot + 1 if isinstance(slot, int) else self._merge_key
                return
            time.sleep(TURN_POLL_S)

    def run_clip(
        self, clip: int, seed: int, conditioning: Tensors
    ) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """One session from start to end; returns latents [24, T, h, w] and [2, 32, A]."""
        session_id = uuid.uuid4().hex
        self._session_id = session_id
        self._jobs.ask(self._plan, "session", session_id=session_id, dit=self.model)
        session = {"SESSION": text_tensor(session_id)[None]}
        ended = False
        try:
            self._start(session, seed, conditioning)
            for step in range(self._plan.num_forwards):
                began = time.perf_counter()
                self._boundary(step, clip)
                self.times.jobs_s.append(time.perf_counter() - began)
                self._step(session, step, clip)
            ended = True
            latents = ("VIDEO_LATENTS", "AUDIO_LATENTS")
            wanted = {"OP": _op("end"), **session, "WANT_LATENTS": np.array([[True]])}
            answer = self._call(self.model, wanted, ["STATE", *latents])
            state = json.loads(answer["STATE"].reshape(-1)[0])
            self.facts.update(state.get("facts", {}))
            self.times.tail_s += state.get("tail_s", 0.0)
            return answer[latents[0]][0], answer[latents[1]][0]
        except UnknownSessionError:
            self._jobs.check_cancel(self._plan, "denoiser")  # ended from outside: `jobs` knows why
            raise
        finally:
            if not ended:
                self._drop(session)

    def _start(self, session: Tensors, seed: int, conditioning: Tensors) -> None:
        session_plan = json.dumps({"plan": asdict(self._plan), "seed": seed})
        inputs = {
            "OP": _op("start"),
            **session,
            "SESSION_PLAN": text_tensor(session_plan)[None],
            **conditioning,
        }
        self._call(self.model, inputs, ["STATE"])

    def _boundary(self, step: int, clip: int) -> None:
        """Report the step that comes next; a job that was stopped ends here."""
        newest = self.times.compute_s[-1] if self.times.compute_s else None
        self._jobs.progress(
            self._plan,
            "denoiser",
            step=step,
            num_steps=self._plan.num_forwards,
            clip=clip,
            step_s=newest,
            session_id=self._session_id,
            dit=self.model,
        )

    def _step(self, session: Tensors, step: int, clip: int) -> None:
        index = np.full((1, self._merge_key), step, dtype=np.int32)
        inputs = {"OP": _op("step"), **session, "STEP": index}
        while True:
            began = time.perf_counter()
            answer = self._call(self.model, inputs, ["STATE"])
            state = json.loads(answer["STATE"].reshape(-1)[0])
            if state["ready"]:
                self.times.round_trip_s.append(time.perf_counter() - began)
                self.times.compute_s.append(state["compute_s"])
                self.facts.update(state.get("facts", {}))
                return
            time.sleep(READY_POLL_S)
            self._boundary(step, clip)

    def _drop(self, session: Tensors) -> None:
        """End a session whose latents nobody wants; the error on the way out says more."""
        try:
            self._call(self.model, {"OP": _op("end"), **session}, ["STATE"])
        except H3Error as error:
            # A DiT that is gone has no session to end; one that lives drops it by its lease.
            self._jobs.note(self._plan, f"could not end the session: {error}")


def _op(name: str) -> NDArray[np.generic]:
    return text_tensor(name)[None]
