"""Random requests against preprocess: each is served or refused by name, and memory stays flat."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOAK_REQUESTS, QUICK_REQUESTS = 20_000, 500  # of a full soak, and of `make test`
FULL_SOAK_SECONDS = 1800
MAX_GROWTH_BYTES = 16 * 1024**2
PROGRAM = Path(__file__).with_name("random_requests.py")


@pytest.mark.soak
@pytest.mark.timeout(2400)
def test_any_request_is_served_or_refused_by_name(
    tiny_checkpoint: Path, soak_seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = SOAK_REQUESTS if soak_seconds >= FULL_SOAK_SECONDS else QUICK_REQUESTS
    # Large arrays go back to the system: else the C library keeps holes, and growth says little.
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(128 * 1024))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = [sys.executable, str(PROGRAM), str(tiny_checkpoint), str(count)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    told = json.loads(done.stdout)
    assert count // 10 < told["refused"] < count * 9 // 10
    assert told["longest_refusal"] < 2000
    assert told["grown_bytes"] < MAX_GROWTH_BYTES
