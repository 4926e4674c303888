"""Cancel by id, and what a dying model does to running jobs."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from h3_client.client import H3Client, H3ClientError

SMALL = {"width": 64, "height": 64, "num_inference_steps": 20}


def wait_for(client: H3Client, name: str, stage: str) -> None:
    deadline = time.monotonic() + 20
    while client.job(name).get("stage") != stage or client.job(name).get("step", 0) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_cancel_stops_the_job_within_a_step(server_with) -> None:
    server = server_with(test_step_delay_ms=100)
    client = H3Client(server.grpc_url)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(H3Client(server.grpc_url).generate, "p", request_id="j", **SMALL)
        wait_for(client, "j", "denoiser")
        assert client.cancel("j")["cancelled"] is True
        began = time.monotonic()
        with pytest.raises(H3ClientError) as stopped:
            running.result()
        assert time.monotonic() - began < 1.0
    assert stopped.value.status == "CANCELLED"
    assert client.job("j")["state"] == "cancelled"
    assert client.ping()["active"] == 0
    assert client.generate("p", **(SMALL | {"num_inference_steps": 3})).mp4


def test_a_waiting_job_has_a_position_and_can_be_cancelled(server_with) -> None:
    server = server_with(test_step_delay_ms=100, running_jobs=1)
    client = H3Client(server.grpc_url)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(H3Client(server.grpc_url).generate, "p", request_id="a", **SMALL)
        wait_for(client, "a", "denoiser")
        second = pool.submit(H3Client(server.grpc_url).generate, "p", request_id="b", **SMALL)
        deadline = time.monotonic() + 10
        while client.job("b").get("state") != "waiting":
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert client.job("b")["position"] == 1
        client.cancel("b")
        with pytest.raises(H3ClientError, match="was cancelled; stopped in the queue"):
            second.result()
        assert first.result().mp4


def test_a_job_survives_the_death_of_jobs(server_with) -> None:
    server = server_with(test_step_delay_ms=100)
    client = H3Client(server.grpc_url)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(H3Client(server.grpc_url).generate, "p", request_id="j", **SMALL)
        wait_for(client, "j", "denoiser")
        (pid,) = server.stub_pids("jobs")
        os.kill(pid, signal.SIGKILL)
        assert running.result().mp4[0][4:8] == b"ftyp"


def test_a_dead_dit_is_an_error_and_not_a_hang(server_with) -> None:
    server = server_with(test_step_delay_ms=100)
    client = H3Client(server.grpc_url)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(H3Client(server.grpc_url).generate, "p", request_id="j", **SMALL)
        wait_for(client, "j", "denoiser")
        (pid,) = server.stub_pids("dit_fl2va")
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(H3ClientError, match="dit_fl2va"):
            running.result()
        assert time.monotonic() - began < 5
    assert client.job("j")["state"] == "failed"
    assert client.job("j")["error"]["stage"] == "denoiser"
    assert client.ping()["active"] == 0
