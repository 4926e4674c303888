"""The first stage: request tensors -> a validated plan, token ids and modality tags. No torch."""

import time
import uuid
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from minimax_h3.core.compatibility import check_request, check_start
from minimax_h3.core.config import StageConfig
from minimax_h3.core.constants import TASK_T2VA
from minimax_h3.core.contracts import (
    JOB_ID_PARAMETER,
    RECEIVED_AT_PARAMETER,
    REQUEST_INPUTS,
    ROUTES,
)
from minimax_h3.core.errors import InvalidRequestError, NotAvailableError
from minimax_h3.core.plan import Plan, build_plan, packed_rows
from minimax_h3.core.request import FIELDS, MAX_PROMPT_TOKENS, GenerationRequest, parse_options
from minimax_h3.stages.base import StageContext, StageRequest, text_tensor
from minimax_h3.stages.job_client import REFUSALS, JobClient, job_facts, raise_if_stopped
from minimax_h3.text.presentation import present_t2va
from minimax_h3.text.tokenizer import Tokenizer, load_tokenizer
from minimax_h3.weights.manifest import CheckpointManifest, identify

MAX_RETURNED_FRAME_BYTES = 2 * 1024**3


class PreprocessStage:
    """Validates a request, admits the job and tokenises the prompt."""

    name: ClassVar[str] = "preprocess"

    def __init__(
        self,
        config: StageConfig,
        manifest: CheckpointManifest,
        tokenizer: Tokenizer,
        jobs: JobClient,
    ) -> None:
        self._config = config
        self._manifest = manifest
        self._tokenizer = tokenizer
        self._jobs = jobs

    @classmethod
    def load(cls, context: StageContext) -> "PreprocessStage":
        """Read the checkpoint's index (not its weights) and the tokenizer."""
        check_start(context.config, context.log)
        manifest = identify(context.checkpoint_path, context.config.task_type)
        if manifest.base_schedule is not None:
            raise NotAvailableError(
                f"checkpoint: {context.checkpoint_path} is a distilled release with a schedule of "
                f"its own, {list(manifest.base_schedule)}; legal: base-model checkpoints"
            )
        if manifest.defaulted_shifts:
            context.log.info("sigma shifts not in the checkpoint: %s", manifest.defaulted_shifts)
        jobs = JobClient(context.call, context.log)
        return cls(context.config, manifest, load_tokenizer(manifest.tokenizer), jobs)

    def run(self, request: StageRequest) -> dict[str, NDArray[np.generic]]:
        """Turn a request into a plan.

        Raises:
            InvalidRequestError: a field is wrong; names the field, the value and the legal range.
            NotAvailableError: this server cannot serve the task or feature.
            CapacityError: the server is full.
        """
        received_at, began = _received_at(request), time.perf_counter()
        fields = read_fields(request)
        refuse_fields_as_parameters(request)
        generation = GenerationRequest.from_fields(fields)
        self._check_served(generation)
        token_ids, tags = present_t2va(generation.prompt, self._tokenizer)
        check_budgets(generation, len(token_ids), self._config.max_packed_rows)
        plan = build_plan(
            generation,
            job_id=_given_job_id(request) or uuid.uuid4().hex,
            alias=request.request_id,
            text_rows=len(token_ids),
            flow_shift=self._manifest.video_flow_shift,
            audio_flow_shift=self._manifest.audio_flow_shift,
            received_at=received_at,
        )
        self._admit(plan)
        plan = replace(plan, preprocess_s=round(time.perf_counter() - began, 6))
        return {
            "PLAN": text_tensor(plan.to_json()),
            "TASK": text_tensor(plan.task),
            "TOKEN_IDS": token_ids,
            "TEXT_TAGS": tags[None],
        }

    def _check_served(self, generation: GenerationRequest) -> None:
        served = tuple(task for task in self._manifest.tasks if task in ROUTES)
        if generation.task not in served:
            raise NotAvailableError(
                f"task: {generation.task!r} is not served here, where partition "
                f"{self._manifest.partition} is loaded; legal: {', '.join(served)}"
            )
        if generation.task != TASK_T2VA:
            raise NotAvailableError(
                f"task: {generation.task!r} needs keyframes, which this version does not take; "
                f"legal: {TASK_T2VA}"
            )
        check_request(generation, self._config)

    def _admit(self, plan: Plan) -> None:
        """Register the job. A full server or an id in use refuses it; a lost `jobs` does not."""
        answer = self._jobs.say({**job_facts(plan), "op": "register"}, refusals=REFUSALS)
        raise_if_stopped(answer, self.name)


def read_fields(request: StageRequest) -> dict[str, object]:
    """Typed tensors and the OPTIONS object as one dict of fields, lower-case names.

    Raises:
        InvalidRequestError: text that is not UTF-8, bad OPTIONS, or a field given twice.
    """
    fields: dict[str, object] = {}
    for spec in REQUEST_INPUTS:
        if spec.name == "OPTIONS" or spec.name not in request.tensors:
            continue
        name = spec.name.lower()
        value = request.array(spec.name).reshape(-1)[0]
        fields[name] = _decode(name, value) if isinstance(value, bytes | str) else value.item()
    if "OPTIONS" in request.tensors:
        text = _decode("options", request.array("OPTIONS").reshape(-1)[0])
        for name, value in parse_options(text).items():
            if name in fields:
                raise InvalidRequestError(
                    f"{name}: given as a tensor and in OPTIONS; legal: one of the two"
                )
            fields[name] = value
    return fields


def _decode(name: str, value: bytes | str) -> str:
    if isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"{name}: byte {error.start} is not UTF-8 ({error.reason}); legal: UTF-8 text"
        ) from error


def refuse_fields_as_parameters(request: StageRequest) -> None:
    """Refuse a request field that was sent as a parameter, where it would have no effect.

    Raises:
        InvalidRequestError: names the parameter.
    """
    misplaced = sorted(name for name in request.parameters if name.lower() in FIELDS)
    if misplaced:
        raise InvalidRequestError(
            f"{misplaced[0]}: sent as a request parameter, which no field is; legal: a tensor of "
            "its own or a key of OPTIONS"
        )


def _given_job_id(request: StageRequest) -> str:
    """The id of a job that the stream model has admitted already, or empty."""
    return str(request.parameters.get(JOB_ID_PARAMETER, "")) if request.trusted else ""


def _received_at(request: StageRequest) -> float:
    """Wall-clock seconds at which the request came; a stream may have waited since."""
    given = request.parameters.get(RECEIVED_AT_PARAMETER) if request.trusted else None
    return time.time() if given is None else float(str(given))


def check_budgets(generation: GenerationRequest, text_rows: int, max_packed_rows: int) -> None:
    """Refuse what would not fit, before any work.

    Raises:
        InvalidRequestError: too many tokens, packed rows, or raw frames to return.
    """
    if text_rows > MAX_PROMPT_TOKENS:
        raise InvalidRequestError(
            f"prompt: {text_rows} tokens are not legal; legal: up to {MAX_PROMPT_TOKENS}"
        )
    size = f"{generation.width}x{generation.height}, {generation.num_frames} frames"
    rows = packed_rows(generation, text_rows)
    if rows > max_packed_rows:
        raise InvalidRequestError(
            f"width, height, num_frames: {size} and {text_rows} text tokens are {rows} packed "
            f"rows; legal: up to {max_packed_rows} rows"
        )
    frame_bytes = generation.width * generation.height * 3 * generation.num_frames
    if generation.return_frames and frame_bytes * generation.num_outputs > MAX_RETURNED_FRAME_BYTES:
        raise InvalidRequestError(
            f"return_frames: {size}, {generation.num_outputs} clips are "
            f"{frame_bytes * generation.num_outputs} bytes; legal: up to {MAX_RETURNED_FRAME_BYTES}"
        )
