"""How much slower this machine is, right now, than the one that limits in milliseconds are for."""

import statistics
import time

import numpy as np
import tritonclient.grpc as triton_grpc

from minimax_h3.core.contracts import PROBE_PARAMETER

ROUNDS = 200
# Median on two quiet cores of the machine of docs/benchmarks.md.
REFERENCE_S = 0.45e-3


def probe_seconds(grpc_url: str) -> float:
    """Median of a call through the server to a model's process and back, with nothing of ours."""
    tensor = triton_grpc.InferInput("OP", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([b""], dtype=object))
    seconds = []
    with triton_grpc.InferenceServerClient(grpc_url) as client:
        for _ in range(ROUNDS):
            began = time.perf_counter()
            client.infer("jobs", [tensor], parameters={PROBE_PARAMETER: True})
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def slowness(grpc_url: str) -> float:
    """`probe_seconds` as a multiple of the reference; 1 where it is no longer."""
    return max(1.0, probe_seconds(grpc_url) / REFERENCE_S)
