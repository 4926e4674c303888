"""Good, bad, cancelled and garbage requests at once, for as long as is asked.

`make test` runs a slice of half a minute; `make soak` sets --soak-seconds.
"""

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from running_server import RunningServer

from h3_client.client import H3Client, H3ClientError
from minimax_h3.media.check import frame_hashes, sample_hash
from minimax_h3.serve.shared_memory import SHARED_MEMORY

GOOD = [
    {"prompt": "a red ball", "width": 64, "height": 64, "seed": 1},
    {"prompt": "a green square drifts", "width": 96, "height": 64, "seed": 2},
    {"prompt": "x" * 300, "width": 32, "height": 64, "seed": 3, "num_frames": 107},
]
BAD = [
    {"prompt": ""},
    {"duration": 3.9},
    {"width": 65, "height": 64},
    {"fps": 30.0},
    {"num_inference_steps": 1},
    {"unknown": 1},
    {"quality": "high"},
    {"task": "ref2va"},
    {"num_outputs": 99},
]
STEPS = 5
GROWTH = 0.03  # of a process's own memory, after warm-up; allocator noise stays below it
SLACK_BYTES = 8 * 1024**2
# A region of shared memory keeps room for all tensors that were ever alive in it at once, so it
# grows when more jobs than before end together; it holds a few MB for each of these clips.
REGION_GROWTH_BYTES = 64 * 1024**2


class Traffic:
    """What the workers did, and every surprise."""

    def __init__(self, server, solo: dict[int, tuple[object, str]]) -> None:
        self.server, self.solo = server, solo
        self.counts: Counter[str] = Counter()
        self.surprises: list[str] = []
        self._lock = threading.Lock()

    def note(self, kind: str, surprise: str = "") -> None:
        with self._lock:
            self.counts[kind] += 1
            if surprise:
                self.surprises.append(f"{kind}: {surprise}")

    def good(self, client: H3Client, rng: random.Random) -> None:
        index = rng.randrange(len(GOOD))
        try:
            result = client.generate(**GOOD[index], num_inference_steps=STEPS)
        except H3ClientError as error:
            self.note("refused", "" if error.status == "UNAVAILABLE" else str(error))
            return
        same = hashes(result.mp4[0]) == self.solo[index]
        self.note("good", "" if same else f"clip {index} differs from its solo run")

    def bad(self, client: H3Client, rng: random.Random) -> None:
        fields = GOOD[0] | {"num_inference_steps": STEPS} | rng.choice(BAD)
        try:
            client.generate(**fields)
            self.note("bad", f"accepted: {fields}")
        except H3ClientError as error:
            wrong = error.status not in ("INVALID_ARGUMENT", "UNAVAILABLE")
            self.note("bad", str(error) if wrong else "")

    def cancelled(self, client: H3Client, rng: random.Random) -> None:
        name = f"soak-{rng.getrandbits(64):x}"
        timer = threading.Timer(
            rng.uniform(0, 1.5), lambda: H3Client(self.server.grpc_url).cancel(name)
        )
        timer.start()
        try:
            client.generate(**GOOD[0], num_inference_steps=STEPS, request_id=name)
            self.note("finished before its cancel")
        except H3ClientError as error:
            wrong = error.status not in ("CANCELLED", "UNAVAILABLE")
            self.note("cancelled", str(error) if wrong else "")
        finally:
            timer.join()

    def work(self, seed: int, until: float) -> None:
        rng, client = random.Random(seed), H3Client(self.server.grpc_url)
        kinds = (self.good, self.bad, self.bad, self.cancelled)
        while time.monotonic() < until:
            rng.choice(kinds)(client, rng)


def hashes(mp4: bytes) -> tuple[object, str]:
    return frame_hashes(mp4), sample_hash(mp4)


def own_memory(server) -> dict[int, int]:
    """Resident bytes of each process that it shares with no other."""
    root = psutil.Process(server.process.pid)
    family = [root, *root.children(recursive=True)]
    return {
        process.pid: process.memory_info().rss - process.memory_info().shared for process in family
    }


def regions(server) -> dict[str, int]:
    """Allocated bytes of each region of shared memory."""
    prefix = server.process.launch.shared_memory_prefix
    return {path.name: path.stat().st_blocks * 512 for path in SHARED_MEMORY.glob(f"{prefix}*")}


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(0)
def test_mixed_traffic(combined_server: RunningServer, soak_seconds: int) -> None:
    server = combined_server
    client = H3Client(server.grpc_url)
    solo = {
        index: hashes(client.generate(**request, num_inference_steps=STEPS).mp4[0])
        for index, request in enumerate(GOOD)
    }
    traffic = Traffic(server, solo)
    seconds = soak_seconds / 3  # kills, cancels, overload and many at once take the rest
    with ThreadPoolExecutor(4) as pool:
        until = time.monotonic() + seconds
        workers = [pool.submit(traffic.work, seed, until) for seed in range(4)]
        time.sleep(seconds / 3)
        before, regions_before = own_memory(server), regions(server)
        for worker in workers:
            worker.result()
    after, regions_after = own_memory(server), regions(server)
    print(dict(traffic.counts), {pid: after[pid] - before[pid] for pid in before})  # noqa: T201
    assert not traffic.surprises, traffic.surprises[:10]
    assert min(traffic.counts[kind] for kind in ("good", "bad", "cancelled")) > 0
    assert before.keys() == after.keys(), "a process died or appeared"
    grown = {
        pid: (before[pid], after[pid])
        for pid in before
        if after[pid] > before[pid] * (1 + GROWTH) + SLACK_BYTES
    }
    assert not grown
    assert regions_before.keys() == regions_after.keys()
    wide = {
        name: (size, regions_after[name])
        for name, size in regions_before.items()
        if regions_after[name] > size + REGION_GROWTH_BYTES
    }
    assert not wide
    assert client.ping()["active"] == 0
    assert client.generate(**GOOD[0], num_inference_steps=STEPS).mp4
