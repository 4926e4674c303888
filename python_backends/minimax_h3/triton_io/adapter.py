"""A `Stage` as the `TritonPythonModel` of its folder."""

import hmac
import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, ParamSpec, TypeAlias, TypeVar, cast

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from minimax_h3.control.operation import MAX_ID_CHARS
from minimax_h3.core.config import parse_parameters
from minimax_h3.core.contracts import (
    ENSEMBLE_STEPS,
    MODELS,
    TRACE_VARIABLE,
    WORKER_TOKEN_PARAMETER,
    WORKER_TOKEN_VARIABLE,
    ModelSpec,
)
from minimax_h3.core.errors import CancelledError, H3Error
from minimax_h3.core.parameters import check_parameters
from minimax_h3.stages.base import (
    BatchStage,
    Stage,
    StageContext,
    StageRequest,
    StreamingStage,
    text_tensor,
)
from minimax_h3.stages.job_client import JobClient
from minimax_h3.triton_io.bls import BlsCaller, encode_error, parameters_of, triton_error
from minimax_h3.triton_io.freed_memory import return_freed_memory
from minimax_h3.triton_io.meter import TritonMeter
from minimax_h3.triton_io.observer import Observer
from minimax_h3.triton_io.probe import answer_probes
from minimax_h3.triton_io.tensors import read_inputs, write_outputs
from minimax_h3.triton_io.triton_log import logger_for, printable

# Read by the Python backend itself before it starts the model.
BACKEND_PARAMETERS = frozenset({"EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS"})
JOBS_MODEL = "jobs"
# Stages that work beside another one: only they themselves know when they are done.
SIDE_BY_SIDE = ("text_encoder", "condition_encoder", "video_decoder", "audio_decoder")
PLAIN_START = "plain-start"  # the token where nobody made one: it keeps accidents away, no more

P = ParamSpec("P")
T = TypeVar("T")
Answer: TypeAlias = dict[str, NDArray[np.generic]]


class StageModel:
    """Everything a Triton model of this repository does besides computing."""

    stage_class: ClassVar[type[Stage] | type[BatchStage] | type[StreamingStage]]
    _spec: ModelSpec
    _log: logging.Logger
    _call: BlsCaller
    _stage: Stage | BatchStage | StreamingStage
    _jobs: JobClient
    _token: str
    _meter: TritonMeter
    _observer: Observer
    _delay_s: float

    def initialize(self, args: dict[str, str]) -> None:
        """Load the stage; a failure is logged with its reason and leaves the model unavailable."""
        name = args["model_name"]
        self._spec = MODELS[name]
        self._log = logger_for(name)
        self._token = os.environ.get(WORKER_TOKEN_VARIABLE, PLAIN_START)
        self._call = BlsCaller(self._token, traced=TRACE_VARIABLE in os.environ)
        self._jobs = JobClient(self._call, self._log)
        self._meter = TritonMeter()
        self._observer = Observer(name, self._meter, self._log)
        try:
            config = parse_parameters(_parameters(args))
            self._delay_s = config.test_stage_delay_ms / 1000.0
            folder = Path(args["model_repository"]).resolve()
            context = StageContext(config, folder, self._call, self._log, self._meter)
            self._stage = self.stage_class.load(context)
            return_freed_memory()
        except H3Error as error:
            # The message is the reason; a traceback would only bury it.
            self._log.error("cannot load: %s: %s", error.kind, error)
            raise
        except Exception:
            self._log.exception("cannot load")
            raise
        self._log.info("loaded as %s: %s", args["model_instance_name"], config)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer every request; one that fails does not touch the others."""
        return answer_probes(requests, self._serve)

    def _serve(self, requests: Sequence[Any]) -> list[Any]:
        began = time.perf_counter()
        admitted = [_attempt(self._admit, request) for request in requests]
        if self._delay_s and self._spec.name in ENSEMBLE_STEPS:
            time.sleep(self._delay_s)
        outcomes = (
            self._run_batch(admitted)
            if self._spec.max_batch_size
            else self._run(requests, admitted)
        )
        responses = [
            self._respond(request, outcome)
            for request, outcome in zip(requests, outcomes, strict=True)
        ]
        self._observer.served(admitted, outcomes, time.perf_counter() - began)
        return responses

    def finalize(self) -> None:
        """Triton unloads the model."""
        self._meter.close()
        self._log.info("unloaded")

    def _admit(self, request: Any) -> StageRequest:
        # Triton still calls a step that was scheduled after its client had gone. Asking is a round
        # trip to the server; a call from another model (BLS) is never cancelled, so is not asked.
        if self._spec.name in ENSEMBLE_STEPS and request.is_cancelled():
            raise CancelledError("the client cancelled the request")
        parameters = parameters_of(request)
        token = str(parameters.get(WORKER_TOKEN_PARAMETER, ""))
        trusted = hmac.compare_digest(token.encode(), self._token.encode())
        check_parameters(parameters, trusted=trusted)
        return StageRequest(
            read_inputs(request, self._spec),
            request.request_id(),
            request.is_cancelled,
            parameters,
            trusted=trusted,
        )

    def _run(
        self, requests: Sequence[Any], admitted: Sequence[StageRequest | Exception]
    ) -> list[Answer | Exception]:
        run = cast("Stage", self._stage).run
        outcomes = []
        for request, entry in zip(requests, admitted, strict=True):
            with self._call.within(request):
                outcomes.append(entry if isinstance(entry, Exception) else _attempt(run, entry))
        return outcomes

    def _run_batch(self, admitted: Sequence[StageRequest | Exception]) -> list[Answer | Exception]:
        """All admitted requests in one call; an error of the whole call is each one's error."""
        ready = [entry for entry in admitted if not isinstance(entry, Exception)]
        served = _attempt(cast("BatchStage", self._stage).run_batch, ready) if ready else []
        if not isinstance(served, Exception) and len(served) != len(ready):
            served = TypeError(f"{len(served)} answers to {len(ready)} requests")
        in_order = iter([served] * len(ready) if isinstance(served, Exception) else served)
        return [entry if isinstance(entry, Exception) else next(in_order) for entry in admitted]

    def _respond(self, request: Any, outcome: Answer | Exception) -> Any:
        if not isinstance(outcome, Exception):
            tensors = _attempt(write_outputs, outcome, self._spec)
            if not isinstance(tensors, Exception):
                if self._spec.name in SIDE_BY_SIDE and (job_id := _job_id(request)):
                    self._jobs.say({"op": "left", "job_id": job_id, "stage": self._spec.name})
                return pb_utils.InferenceResponse(tensors)
            outcome = tensors
        job_id = _job_id(request)
        request_id = request.request_id()[:MAX_ID_CHARS]
        facts = {"job_id": job_id, "request_id": request_id}
        who = f"job {job_id or '-'}, request {request_id or '-'}"
        if isinstance(outcome, H3Error):
            status, kind, message = outcome.status, outcome.kind, str(outcome)
            self._log.info("%s: %s: %s", who, kind, message, extra=facts)
        else:
            status, kind = H3Error.status, H3Error.kind
            message = f"{self._spec.name}: unexpected {type(outcome).__name__}; see the server log"
            self._log.error("%s: unexpected error", who, exc_info=outcome, extra=facts)
        if job_id:
            self._tell_jobs(job_id, kind, message)
        text = printable(encode_error(request, kind, message))
        return pb_utils.InferenceResponse(error=triton_error(text, status))

    def _tell_jobs(self, job_id: str, kind: str, message: str) -> None:
        """Mark a job failed, so that its place is free at once; without `jobs` it goes stale."""
        operation = {
            "op": "fail",
            "job_id": job_id,
            "stage": self._spec.name,
            "kind": kind,
            "message": message,
        }
        told = _attempt(
            self._call, JOBS_MODEL, {"OP": text_tensor(json.dumps(operation))}, ["ANSWER"]
        )
        if isinstance(told, Exception):
            self._log.warning("job %s: jobs was not told of its failure: %s", job_id, told)


def stage_model(stage_class: type[Stage] | type[BatchStage]) -> type[StageModel]:
    """The `TritonPythonModel` that serves `stage_class`."""
    return type("TritonPythonModel", (StageModel,), {"stage_class": stage_class})


def _attempt(action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | Exception:
    """Call `action`; an error becomes the answer of one request, reported by `_respond`."""
    try:
        return action(*args, **kwargs)
    except Exception as error:  # noqa: BLE001
        return error


def _parameters(args: dict[str, str]) -> dict[str, str]:
    """The string parameters of the model's `config.pbtxt`, without the Python backend's own."""
    given = json.loads(args["model_config"]).get("parameters", {})
    return {
        name: value.get("string_value", "")  # protobuf leaves out an empty text
        for name, value in given.items()
        if name not in BACKEND_PARAMETERS
    }


def _job_id(request: Any) -> str:
    """The job of a request that carries PLAN, or empty."""
    tensor = pb_utils.get_input_tensor_by_name(request, "PLAN")
    if tensor is None:
        return ""
    plan = _attempt(json.loads, tensor.as_numpy().reshape(-1)[0])
    return str(plan.get("job_id", "")) if isinstance(plan, dict) else ""
