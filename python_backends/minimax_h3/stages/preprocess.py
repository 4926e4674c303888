"""The first stage: request tensors and files -> a validated plan, token ids, vision patches.

No torch. Work grows with what is known to be legal: fields, then the measures of the files, then
the row budget, then admission, and only then pixels are decoded.
"""

import time
import uuid
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from minimax_h3.control.operation import MAX_ID_CHARS, checked_name
from minimax_h3.core.compatibility import check_request, check_start
from minimax_h3.core.conditions import condition_rows
from minimax_h3.core.config import StageConfig
from minimax_h3.core.constants import Modality
from minimax_h3.core.contracts import (
    JOB_ID_PARAMETER,
    RECEIVED_AT_PARAMETER,
    REQUEST_INPUTS,
    ROUTES,
)
from minimax_h3.core.errors import H3Error, InvalidRequestError, NotAvailableError
from minimax_h3.core.fields import FIELDS, MAX_PROMPT_TOKENS, parse_options
from minimax_h3.core.media_rules import with_canvas
from minimax_h3.core.plan import Plan, build_plan
from minimax_h3.core.refusals import refuse
from minimax_h3.core.request import GenerationRequest
from minimax_h3.media.prepare import present_all
from minimax_h3.stages.base import StageContext, StageRequest, decode_text, text_tensor
from minimax_h3.stages.checkpoint import open_checkpoint
from minimax_h3.stages.job_client import REFUSALS, JobClient, job_facts, raise_if_stopped
from minimax_h3.stages.media_files import MediaFiles
from minimax_h3.stages.request_media import RequestMedia, plan_conditions, read_media
from minimax_h3.text.presentation import Block, blocks_of, present_request
from minimax_h3.text.tokenizer import Tokenizer, load_tokenizer
from minimax_h3.text.vision_pixels import VisionTensors, pack_pixels
from minimax_h3.text.vision_rules import VisionRules, load_vision_rules
from minimax_h3.weights.manifest import CheckpointManifest

MAX_RETURNED_FRAME_BYTES = 2 * 1024**3


class PreprocessStage:
    """Validates a request and its files, admits the job, prepares what the text encoder reads."""

    name: ClassVar[str] = "preprocess"

    def __init__(
        self,
        config: StageConfig,
        manifest: CheckpointManifest,
        tokenizer: Tokenizer,
        vision: VisionRules,
        jobs: JobClient,
    ) -> None:
        self._config = config
        self._manifest = manifest
        self._tokenizer = tokenizer
        self._vision = vision
        self._files = MediaFiles(config.media_root)
        self._jobs = jobs

    @classmethod
    def load(cls, context: StageContext) -> "PreprocessStage":
        """Read the checkpoint's index (not its weights) and the tokenizer."""
        check_start(context.config, context.log)
        manifest = open_checkpoint(context)
        if manifest.base_schedule is not None:
            raise NotAvailableError(
                f"checkpoint: {context.checkpoint_path} is a distilled release with a schedule of "
                f"its own, {list(manifest.base_schedule)}; legal: base-model checkpoints"
            )
        if manifest.defaulted_shifts:
            context.log.info("sigma shifts not in the checkpoint: %s", manifest.defaulted_shifts)
        jobs = JobClient(context.call, context.log)
        tokenizer = load_tokenizer(manifest.tokenizer)
        vision = load_vision_rules(manifest.processor)
        return cls(context.config, manifest, tokenizer, vision, jobs)

    def run(self, request: StageRequest) -> dict[str, NDArray[np.generic]]:
        """Turn a request into a plan.

        Raises:
            InvalidRequestError: a field or file is wrong; names it, the value and the legal range.
            NotAvailableError: this server cannot serve the task or feature.
            CapacityError: the server is full.
        """
        received_at, began = _received_at(request), time.perf_counter()
        fields = read_fields(request)
        check_request_id(request)
        canvas = self._manifest.canvas
        generation = GenerationRequest.from_fields(fields, canvas)
        self._check_served(generation)
        media = read_media(generation, self._files)
        generation = with_canvas(generation, [file.facts for file in media.keyframes], canvas)
        conditions = plan_conditions(generation, media, canvas)
        blocks = blocks_of(conditions, self._vision)
        token_ids, tags = present_request(generation.prompt, blocks, self._tokenizer)
        plan = build_plan(
            generation,
            job_id=_given_job_id(request) or uuid.uuid4().hex,
            alias=request.request_id,
            text_rows=len(token_ids),
            flow_shift=self._manifest.video_flow_shift,
            audio_flow_shift=self._manifest.audio_flow_shift,
            received_at=received_at,
            conditions=conditions,
        )
        check_budgets(plan, int((tags == Modality.TEXT).sum()), self._config.max_packed_rows)
        self._admit(plan)
        pixels = self._pixels(plan, blocks, media)
        plan = replace(plan, preprocess_s=round(time.perf_counter() - began, 6))
        return {
            "PLAN": text_tensor(plan.to_json()),
            "TASK": text_tensor(plan.task),
            "TOKEN_IDS": token_ids,
            "TEXT_TAGS": tags[None],
            "PIXEL_VALUES": pixels.pixel_values,
            "IMAGE_GRID_THW": pixels.image_grid,
            "VIDEO_GRID_THW": pixels.video_grid,
        }

    def _check_served(self, generation: GenerationRequest) -> None:
        served = tuple(task for task in self._manifest.tasks if task in ROUTES)
        if generation.task not in served:
            raise NotAvailableError(
                f"task: {generation.task!r} is not served here, where partition "
                f"{self._manifest.partition} is loaded; legal: {', '.join(served)}"
            )
        check_request(generation, self._config)

    def _admit(self, plan: Plan) -> None:
        """Register the job. A full server or an id in use refuses it; a lost `jobs` does not."""
        answer = self._jobs.say({**job_facts(plan), "op": "register"}, refusals=REFUSALS)
        raise_if_stopped(answer, self.name)

    def _pixels(self, plan: Plan, blocks: tuple[Block, ...], media: RequestMedia) -> VisionTensors:
        """Decode what the text encoder sees. The job has a place by now: a failure gives it back.

        Raises:
            InvalidRequestError: a file is damaged behind its head.
            CancelledError: the job was cancelled meanwhile.
        """
        try:
            if plan.conditions:
                self._jobs.progress(plan, self.name)
            files = map(media.file_of, plan.conditions)
            return pack_pixels(blocks, present_all(plan.conditions, files))
        except Exception as error:
            kind = error.kind if isinstance(error, H3Error) else H3Error.kind
            self._jobs.ask(plan, "fail", stage=self.name, kind=kind, message=str(error))
            raise


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
        values = request.array(spec.name).reshape(-1).tolist()
        if FIELDS[name].kind is str:
            values = [decode_text(name, value) for value in values]
        fields[name] = values if FIELDS[name].is_list else values[0]
    if "OPTIONS" in request.tensors:
        text = decode_text("options", request.array("OPTIONS").reshape(-1)[0])
        for name, value in parse_options(text).items():
            if name in fields:
                raise refuse(
                    name, value, "absent in OPTIONS beside the tensor of that name; one of the two"
                )
            fields[name] = value
    return fields


def check_request_id(request: StageRequest) -> None:
    """Refuse a request id that `jobs` would not keep; a long one is not repeated in the answer.

    Raises:
        InvalidRequestError: names what is legal.
    """
    length = len(request.request_id)
    if length > MAX_ID_CHARS:
        raise InvalidRequestError(
            f"request_id: {length:,} characters are not legal; legal: up to {MAX_ID_CHARS}"
        )
    if request.request_id:
        checked_name("request_id", request.request_id)


def _given_job_id(request: StageRequest) -> str:
    """The id of a job that the stream model has admitted already, or empty."""
    return str(request.parameters.get(JOB_ID_PARAMETER, "")) if request.trusted else ""


def _received_at(request: StageRequest) -> float:
    """Wall-clock seconds at which the request came; a stream may have waited since."""
    given = request.parameters.get(RECEIVED_AT_PARAMETER) if request.trusted else None
    return time.time() if given is None else float(str(given))


def check_budgets(plan: Plan, text_tokens: int, max_packed_rows: int) -> None:
    """Refuse what would not fit, before anything is decoded in full.

    Args:
        plan: of the request.
        text_tokens: tokens of the prompt and of the labels in front of it, without those of
            pictures.
        max_packed_rows: the server's row budget.

    Raises:
        InvalidRequestError: too many tokens, packed rows, or raw frames to return.
    """
    if text_tokens > MAX_PROMPT_TOKENS:
        raise InvalidRequestError(
            f"prompt: {text_tokens} tokens are not legal; legal: up to {MAX_PROMPT_TOKENS}"
        )
    size = f"{plan.width}x{plan.height}, {plan.num_frames} frames"
    if plan.packed_rows > max_packed_rows:
        files = f", {condition_rows(plan.conditions)} rows of files" if plan.conditions else ""
        raise InvalidRequestError(
            f"width, height, num_frames{', references' if plan.conditions else ''}: {size}{files} "
            f"and {plan.text_rows} text tokens are {plan.packed_rows} packed rows; legal: up to "
            f"{max_packed_rows} rows"
        )
    frame_bytes = plan.width * plan.height * 3 * plan.num_frames * len(plan.seeds)
    if plan.return_frames and frame_bytes > MAX_RETURNED_FRAME_BYTES:
        raise InvalidRequestError(
            f"return_frames: {size}, {len(plan.seeds)} clips are {frame_bytes} bytes; "
            f"legal: up to {MAX_RETURNED_FRAME_BYTES}"
        )
