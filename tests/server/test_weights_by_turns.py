"""A server whose weights take turns makes the same clips, one job or several, and heals.

On a CPU the weights move within host memory; who waits for whom is what it is on a GPU.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from running_server import RunningServer
from supervised import Supervised, supervised, wait_for

from h3_client.client import GenerationResult, H3Client, H3ClientError
from minimax_h3.media.check import frame_hashes, sample_hash

MODELS = ("text_encoder", "dit_fl2va", "video_decoder")
REQUEST = {"prompt": "a red ball", "width": 64, "height": 64, "num_inference_steps": 9}
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def by_turns(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    folder = tmp_path_factory.mktemp("turns")
    words = ("--offload", ",".join(MODELS), "--preflight", "warn")
    with supervised(tiny_checkpoint, folder, *words) as serving:
        yield serving


def hashes(result: GenerationResult) -> tuple[object, str]:
    return frame_hashes(result.mp4[0]), sample_hash(result.mp4[0])


def moves(result: GenerationResult) -> dict[str, int]:
    stages = result.metadata["stages"]
    names = ("text_encoder", "denoiser", "video_decoder")
    return {name: stages[name]["offload"]["moves"] for name in names}


def test_one_job_moves_the_weights_of_each_model_once(
    by_turns: Supervised, server: RunningServer
) -> None:
    client = by_turns.client()
    first, second = client.generate(**REQUEST), client.generate(**REQUEST)
    assert moves(second) == {"text_encoder": 1, "denoiser": 1, "video_decoder": 1}
    with H3Client(server.grpc_url) as resident:
        alone = resident.generate(**REQUEST)
    assert hashes(first) == hashes(second) == hashes(alone)
    assert "offload" not in alone.metadata["stages"]["denoiser"]
    assert by_turns.says("weights take turns (--offload text_encoder,")
    assert by_turns.facts["resident_plan"]["parts"][0]["takes_turns"] is True


def test_jobs_beside_each_other_make_the_same_clips(by_turns: Supervised) -> None:
    expected = [hashes(by_turns.client().generate(**REQUEST, seed=seed)) for seed in (1, 2, 3)]

    def job(seed: int) -> tuple[object, str]:
        return hashes(by_turns.client().generate(**REQUEST, seed=seed))

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(job, (1, 2, 3))) == expected


def test_the_turn_of_a_killed_model_goes_to_the_others(by_turns: Supervised) -> None:
    client = by_turns.client()
    expected = hashes(client.generate(**REQUEST))
    with ThreadPoolExecutor(1) as pool:
        long = {**REQUEST, "num_inference_steps": 200}
        job = pool.submit(client.generate, **long, request_id="long")
        wait_for(lambda: client.job("long").get("dit"))
        (dit,) = by_turns.stubs("dit_fl2va")  # whose turn it is
        before = by_turns.says("dit_fl2va: serves again")
        dit.kill()
        with pytest.raises(H3ClientError):
            job.result(20)
    wait_for(lambda: by_turns.says("dit_fl2va: serves again") > before, 40)
    assert hashes(client.generate(**REQUEST)) == expected
