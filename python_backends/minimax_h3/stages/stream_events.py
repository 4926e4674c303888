"""What a stream says: JSON events, and the tensors of its last response."""

import base64
import json
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from minimax_h3.core.errors import RETRY_AFTER_S, CapacityError, H3Error
from minimax_h3.stages.base import text_tensor

Response = dict[str, NDArray[np.generic]]

RESULT_FORMS = ("bytes", "base64", "handle")
_TOLD = (
    *("state", "stage", "step", "clip", "num_clips", "position", "elapsed_s", "expected_s"),
    "priority",
)


def event(name: str, job_id: str, **facts: object) -> dict[str, object]:
    """An event with its name and its job in front."""
    return {"event": name, "job_id": job_id, **facts}


def state_event(name: str, job_id: str, described: Mapping[str, object]) -> dict[str, object]:
    """An event with the state of a job as `jobs` described it; `num_steps` are its stage's."""
    told = {key: described[key] for key in _TOLD if key in described}
    return event(name, job_id, **told, num_steps=described.get("stage_steps", 0))


def progress_events(job_id: str, described: Mapping[str, object]) -> list[dict[str, object]]:
    """One event for each step that `jobs` noted since it was last asked."""
    marks = described.get("marks")
    events = []
    for stage, step, num_steps, clip, at_s in marks if isinstance(marks, list) else []:
        at = {"stage": stage, "step": step, "stage_steps": num_steps, "clip": clip}
        events.append(
            state_event("progress", job_id, {**described, **at, "elapsed_s": round(at_s, 3)})
        )
    return events


def error_event(job_id: str, error: H3Error) -> dict[str, object]:
    """The machine-readable form of an error; the last response carries its text once more."""
    hint = {"retry_after_s": RETRY_AFTER_S} if error.status == CapacityError.status else {}
    return event("error", job_id, kind=error.kind, code=error.status, message=str(error), **hint)


def response_of(spoken: Mapping[str, object]) -> Response:
    """A response that carries one event."""
    return {"EVENT": text_tensor(json.dumps(spoken))}


def result_response(
    job_id: str, clips: NDArray[np.generic], metadata: str, result_as: str
) -> Response:
    """The last response: the event `result` and the files in the form that was asked for.

    Triton writes the bytes of a tensor raw into the JSON of `/generate_stream`, so only `base64`
    and `handle` are legal JSON there.
    """
    files = [bytes(clip) for clip in clips.reshape(-1)]
    sizes = [len(file) for file in files]
    response = response_of(event("result", job_id, bytes=sizes, form=result_as, handle=job_id))
    response["METADATA"] = text_tensor(metadata)
    if result_as == "base64":
        files = [base64.b64encode(file) for file in files]
    if result_as != "handle":
        response["MP4"] = np.array(files, dtype=object)
    return response
