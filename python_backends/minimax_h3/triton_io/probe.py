"""Requests that only ask whether a model's process answers.

The supervisor and `h3 health` send them to models that are idle. They reach the process through
everything that a real request passes, and no stage hears of them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from minimax_h3.core.contracts import PROBE_PARAMETER
from minimax_h3.triton_io.bls import parameters_of


def is_probe(request: Any) -> bool:
    """Whether a request asks only for an answer."""
    text = request.parameters() or ""
    # Almost no request is one: their parameters are not parsed for it.
    return PROBE_PARAMETER in text and PROBE_PARAMETER in parameters_of(request)


def answer_probes(
    requests: Sequence[Any], serve: Callable[[Sequence[Any]], list[Any]]
) -> list[Any]:
    """Answer the probes among some requests, and let `serve` answer the others.

    Returns:
        One response a request, in order.
    """
    probed = [is_probe(request) for request in requests]
    if not any(probed):
        return serve(requests)
    work = [request for request, probe in zip(requests, probed, strict=True) if not probe]
    served = iter(serve(work) if work else [])
    return [pb_utils.InferenceResponse([]) if probe else next(served) for probe in probed]
