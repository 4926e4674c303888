"""What a request made, and the JSON of its tensors."""

import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from h3_client.errors import INTERNAL, H3ClientError


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """What one request made.

    Attributes:
        mp4: finished files, one per clip.
        metadata: the server's account of the request: sizes, frames, seeds, seconds of each stage.
        request_id: the alias under which `jobs` knows the request.
        seconds: wall-clock seconds from sending to the last byte.
        frames: uint8 RGB [n, F, H, W, 3], only when asked for.
        audio: float32 waveform in [-1, 1] at 32 kHz, [n, 2, samples], only when asked for.
    """

    mp4: list[bytes]
    metadata: dict[str, object]
    request_id: str
    seconds: float
    frames: NDArray[np.generic] | None = None
    audio: NDArray[np.generic] | None = None


def json_object(array: NDArray[np.generic], name: str) -> dict[str, object]:
    """The object that a JSON tensor of the server holds.

    Raises:
        H3ClientError: it is not there, not JSON, or no object.
    """
    try:
        value = json.loads(array.reshape(-1)[0])
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise H3ClientError(INTERNAL, f"the server's {name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise H3ClientError(INTERNAL, f"the server's {name} is not a JSON object")
    return value
