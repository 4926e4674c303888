"""Steps longer than the hang timeout, then a stop with four jobs: grace, cancel, nothing left."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from supervised import supervised, wait_for

from h3_client.client import H3ClientError
from minimax_h3.serve.stubs import find_stubs, is_alive

pytestmark = pytest.mark.timeout(300)

REQUEST = {"prompt": "a red ball", "width": 64, "height": 64}
GRACE_S = 6.0
STOP_S = 15.0


def test_a_long_step_is_no_hang_and_a_stop_with_four_jobs_is_clean(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    times = ("--test-step-delay-ms", "300", "--hang-timeout", "0.2", "--silence-timeout", "30")
    words = (*times, "--grace", f"{GRACE_S:g}")
    with supervised(tiny_checkpoint, tmp_path, *words) as serving, ThreadPoolExecutor(5) as pool:
        serving.client().generate(**REQUEST, num_inference_steps=4)
        assert not serving.says("new process")  # a busy worker is never taken for dead
        steps = {"short": 2, "long-a": 50, "long-b": 50, "long-c": 50}
        jobs = {
            name: pool.submit(
                lambda name=name, count=count: serving.client().generate(
                    **REQUEST, num_inference_steps=count, request_id=name
                )
            )
            for name, count in steps.items()
        }
        wait_for(lambda: len([job for job in serving.client().jobs() if job["dit"]]) == 4)
        family = [stub for stubs in find_stubs(serving.server_pid).values() for stub in stubs]
        family.append(psutil.Process(serving.server_pid))
        serving.close()

        began = time.monotonic()
        serving.process.send_signal(signal.SIGTERM)
        wait_for(lambda: serving.says("jobs get up to"), 5)
        with pytest.raises(H3ClientError) as late:
            serving.client().generate(**REQUEST)
        assert late.value.status == "UNAVAILABLE"
        assert "stopping" in late.value.message
        assert jobs["short"].result(GRACE_S).mp4
        for name in ("long-a", "long-b", "long-c"):
            with pytest.raises(H3ClientError) as cancelled:
                jobs[name].result(GRACE_S + STOP_S)
            assert cancelled.value.status == "CANCELLED"
        assert serving.process.wait(GRACE_S + STOP_S) == 0
        assert time.monotonic() - began < GRACE_S + STOP_S
        assert serving.lines()[-1] == "h3 serve: stopped"
        assert not any(is_alive(process) for process in family)
        run_id = serving.region_prefix.split("_")[1]
        assert not [file for file in Path("/dev/shm").iterdir() if run_id in file.name]
