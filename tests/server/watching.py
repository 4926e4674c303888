"""What tests of running jobs share: waiting for a moment, asking `jobs`, counting sessions."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tritonclient.grpc as triton_grpc

from h3_client.client import H3Client


def until(reached: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, "not reached in time"
        time.sleep(0.01)


def _text(name: str, value: str, shape: list[int]):
    filled = triton_grpc.InferInput(name, shape, "BYTES")
    filled.set_data_from_numpy(np.array([value.encode()], dtype=object).reshape(shape))
    return filled


def dit_status(server) -> dict:
    """Sessions that the DiT holds, and how many it has had."""
    with triton_grpc.InferenceServerClient(server.grpc_url) as client:
        asked = [_text("OP", "status", [1, 1]), _text("SESSION", "-", [1, 1])]
        answer = client.infer("dit_fl2va", asked)
        return json.loads(answer.as_numpy("STATE").reshape(-1)[0])


def tell_jobs(server, operation: dict) -> dict:
    """An operation of `jobs` with the token of this start, as the supervisor sends it."""
    token = server.process.launch.environment["H3_WORKER_TOKEN"]
    with triton_grpc.InferenceServerClient(server.grpc_url) as client:
        answer = client.infer(
            "jobs",
            [_text("OP", json.dumps(operation), [1])],
            parameters={"h3_worker_token": token},
        )
        return json.loads(answer.as_numpy("ANSWER")[0])


def ask_jobs(server, operation: dict) -> dict:
    """An operation of `jobs` as any client sends it."""
    return H3Client(server.grpc_url)._jobs(operation)


def step_times(server, name: str) -> list[float]:
    """When each forward of a job began, in seconds of the job table."""
    told = ask_jobs(server, {"op": "timeline", "id": name})
    return [told["began_s"] + mark[4] for mark in told["marks"] if mark[0] == "denoiser"]


def seconds_when_full(send: Callable[[int], object], clients: int, turns: int) -> list[float]:
    """Seconds of each answer when every client sends its next request at the answer to its last."""
    seconds: list[float] = []

    def client(worker: int) -> None:
        for turn in range(turns):
            began = time.monotonic()
            send(100 * worker + turn)
            seconds.append(time.monotonic() - began)

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))
    return seconds
