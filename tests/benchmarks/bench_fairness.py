"""How two jobs share the DiT, and how long a short job waits beside a long one.

`python -m tests.benchmarks.bench_fairness CHECKPOINT [--rounds 10]` prints JSON: medians and every
round. Steps are lengthened by 20 ms, so that the DiT is what jobs wait for.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from h3_client.client import GenerationResult, H3Client
from tests.server.supervised import supervised

FORWARDS, SHORT, APART_S = 49, 4, 0.5
SMALL = {"width": 64, "height": 64, "num_frames": 107}


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    words = ("--test-step-delay-ms", "20")
    with (
        tempfile.TemporaryDirectory() as folder,
        supervised(args.checkpoint, Path(folder), *words, counting=False) as serving,
    ):
        url = str(serving.facts["grpc_url"])
        run(url, FORWARDS)
        told = {
            "two_long": rounds(args.rounds, lambda: two_long(url)),
            "short_beside_long": rounds(args.rounds, lambda: short_beside_long(url)),
        }
    sys.stdout.write(json.dumps(told, indent=2) + "\n")


def rounds(count: int, measure) -> dict[str, object]:
    """Run a measurement several times."""
    ratios = [round(measure(), 3) for _ in range(count)]
    return {"median": statistics.median(ratios), "rounds": ratios}


def run(url: str, forwards: int) -> GenerationResult:
    """One clip."""
    return H3Client(url).generate("p", num_inference_steps=forwards + 1, **SMALL)


def two_long(url: str) -> float:
    """Seconds until both of two equal jobs are done, over those of fair sharing.

    Fair: the second step of either waits for one step of the other, and all that is not the loop
    takes as long as alone.
    """
    alone = run(url, FORWARDS)
    loop = float(alone.metadata["stages"]["denoiser"]["seconds"])
    with ThreadPoolExecutor(2) as pool:
        began = time.monotonic()
        jobs = [pool.submit(run, url, FORWARDS)]
        time.sleep(APART_S)
        jobs.append(pool.submit(run, url, FORWARDS))
        for job in jobs:
            job.result()
        took = time.monotonic() - began
    return took / (2 * loop + (alone.seconds - loop))


def short_beside_long(url: str) -> float:
    """Seconds of a short job that enters beside a long one, over those of it alone."""
    alone = run(url, SHORT).seconds
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(run, url, FORWARDS)
        time.sleep(APART_S)
        beside = run(url, SHORT).seconds
        assert not long.done(), "the long job was over too soon to be beside it"
        long.result()
    return beside / alone


if __name__ == "__main__":
    main()
