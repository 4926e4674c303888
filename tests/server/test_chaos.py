"""Random kills among good, bad and cancelled requests; and memory over many requests in a row.

`make test` runs a short slice; `make soak` the whole: 500 events, 1,000 requests.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from process_memory import growth, usage_of
from supervised import SERVED, Supervised, supervised, wait_for

from h3_client.client import H3Client, H3ClientError
from minimax_h3.core.contracts import MODELS
from minimax_h3.media.check import frame_hashes, sample_hash

EVENTS, REQUESTS = 500, 1000
# Until the pools of the C library have their size, three processes grow by 1 to 15 MB.
WARM = 700
GROWTH = 0.01  # of each process, after these
GOOD = {"prompt": "a red ball", "width": 64, "height": 64, "num_inference_steps": 4}
TRIES = 60  # of a good request; the server says when it is worth another
RETRY_S = 0.5
HANGS_S = 60.0


def hashes(mp4: bytes) -> tuple[object, str]:
    return frame_hashes(mp4), sample_hash(mp4)


class Chaos:
    """Workers that draw from one list of events, and every surprise."""

    def __init__(self, serving: Supervised, events: list[str]) -> None:
        self.serving, self.events = serving, events
        self.alone = hashes(serving.client().generate(**GOOD).mp4[0])
        self.counts: Counter[str] = Counter()
        self.surprises: list[str] = []
        self.lock = threading.Lock()
        self.killing = threading.Lock()

    def work(self, seed: int) -> None:
        rng, client = random.Random(seed), self.serving.client()
        acts: dict[str, Callable[[H3Client, random.Random], None]] = {
            "good": self.good,
            "bad": self.bad,
            "cancel": self.cancel,
            "kill": self.kill,
        }
        while True:
            with self.lock:
                if not self.events:
                    return
                event = self.events.pop()
            began = time.monotonic()
            acts[event](client, rng)
            with self.lock:
                self.counts[event] += 1
                if event != "good" and time.monotonic() - began > HANGS_S:
                    self.surprises.append(f"{event} took {time.monotonic() - began:.0f} s")

    def good(self, client: H3Client, rng: random.Random) -> None:
        """Tried again until it is done: none may be lost, none may be wrong, none may hang."""
        for _ in range(TRIES):
            try:
                made = client.generate(**GOOD, timeout_s=HANGS_S)
            except H3ClientError as error:
                if error.status in ("INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "CONNECTION"):
                    self.surprises.append(f"good: {error.status}: {error}")
                time.sleep(RETRY_S)
                continue
            if hashes(made.mp4[0]) != self.alone:
                self.surprises.append("good: another clip than alone")
            return
        self.surprises.append("good: lost")

    def bad(self, client: H3Client, rng: random.Random) -> None:
        wrong = rng.choice([{"width": 65}, {"fps": 30.0}, {"unknown": 1}, {"prompt": ""}])
        try:
            client.generate(**GOOD | wrong, timeout_s=HANGS_S)
            self.surprises.append(f"bad: accepted {wrong}")
        except H3ClientError as error:
            if error.status in ("DEADLINE_EXCEEDED", "CONNECTION"):
                self.surprises.append(f"bad: {error.status}: {error}")

    def cancel(self, client: H3Client, rng: random.Random) -> None:
        name = f"chaos-{rng.getrandbits(64):x}"
        timer = threading.Timer(rng.uniform(0, 1), lambda: self.try_cancel(name))
        timer.start()
        try:
            client.generate(**GOOD, request_id=name, timeout_s=HANGS_S)
        except H3ClientError as error:
            if error.status in ("DEADLINE_EXCEEDED", "CONNECTION"):
                self.surprises.append(f"cancel: {error.status}: {error}")
        finally:
            timer.join()

    def try_cancel(self, name: str) -> None:
        try:
            self.serving.client().cancel(name)
        except H3ClientError:
            self.counts["cancel while jobs was away"] += 1

    def kill(self, client: H3Client, rng: random.Random) -> None:
        """One at a time, because a model must serve again before the next is hurt."""
        with self.killing:
            model = rng.choice(sorted(SERVED))
            stubs = self.serving.stubs(model)
            if not stubs:
                return
            before = self.serving.says(f"{model}: serves again")
            rng.choice(stubs).kill()
            # An old process of the denoiser that only finishes its jobs is not replaced.
            if MODELS[model].instances == 1:
                wait_for(lambda: self.serving.says(f"{model}: serves again") > before, HANGS_S)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(0)
def test_kills_cancels_bad_and_good_requests(
    supervised_server: Supervised, soak_seconds: int, whole_soak: bool
) -> None:
    serving = supervised_server
    count = EVENTS if whole_soak else max(soak_seconds // 8, 10)
    rng = random.Random(1)
    events = [("good", "good", "bad", "cancel", "kill")[index % 5] for index in range(count)]
    rng.shuffle(events)
    chaos = Chaos(serving, events)
    with ThreadPoolExecutor(4) as pool:
        for worker in [pool.submit(chaos.work, seed) for seed in range(4)]:
            worker.result()
    assert not chaos.surprises, chaos.surprises[:10]
    assert serving.process.poll() is None
    assert not serving.says("the server is started again")
    assert hashes(serving.client().generate(**GOOD).mp4[0]) == chaos.alone
    wait_for(lambda: serving.client().ping()["active"] == 0, 30)
    wait_for(lambda: serving.sessions() == 0, 30)


@pytest.mark.whole_soak
@pytest.mark.slow
@pytest.mark.timeout(0)
def test_memory_stays_flat_over_requests_in_a_row(tiny_checkpoint: Path, tmp_path: Path) -> None:
    request = GOOD | {"num_inference_steps": 3}
    # Kept results fill their folder on purpose; they are no leak.
    with supervised(tiny_checkpoint, tmp_path) as serving:
        client = serving.client()
        for _ in range(WARM):
            client.generate(**request)
        before = usage_of(serving.server_pid, serving.region_prefix)
        for _ in range(REQUESTS - WARM):
            client.generate(**request)
        after = usage_of(serving.server_pid, serving.region_prefix)
        assert growth(before, after, GROWTH) == {}
