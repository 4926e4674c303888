"""All tasks through the real server with real pictures, clips and speech; references kept small."""

import re
import time
from pathlib import Path

import numpy as np
import pytest
from running_server import RunningServer

from h3_client.client import GenerationResult, H3Client, H3ClientError
from h3_client.sample_media import MissingMediaError, clip, picture, speech
from minimax_h3.core.request_page import page
from minimax_h3.media.check import Expectation, check_mp4, frame_hashes, sample_hash

SMALL = {"width": 64, "height": 64, "num_inference_steps": 4, "duration": 4.0}
CAT, ROCKET, FACE = (picture(name) for name in ("chelsea.png", "rocket.jpg", "astronaut.png"))
CARTOON, PHONE = clip("bigbuckbunny.mp4"), clip("carphone_pristine.mp4")
# Two seconds of each are the shortest legal video; the tiny autoencoder is slow on a CPU.
MATRIX: dict[str, dict[str, object]] = {
    "first frame": {"keyframes": [CAT]},
    "last frame": {"keyframes": [CAT], "frame_indices": [-1]},
    "first and last frame": {"keyframes": [CAT, ROCKET]},
    "one image": {"references": [FACE]},
    "three images": {"references": [FACE, CAT, ROCKET]},
    "video with sound": {"references": [CARTOON], "start_time_seconds": [3.2]},
    "two videos": {"references": [CARTOON, PHONE], "start_time_seconds": [3.2, 2.0]},
}


@pytest.fixture(scope="module")
def server(combined_server: RunningServer, media_root: Path) -> RunningServer:
    (media_root / "cat.png").write_bytes(CAT.read_bytes())
    return combined_server


def generate(server: RunningServer, protocol: str = "grpc", **fields: object) -> GenerationResult:
    url = server.grpc_url if protocol == "grpc" else server.http_url
    with H3Client(url, protocol) as client:
        return client.generate("Picture 1 moves", **(SMALL | fields))


def hashes(result: GenerationResult) -> tuple[list[str], str]:
    return frame_hashes(result.mp4[0]), sample_hash(result.mp4[0])


def check(result: GenerationResult) -> None:
    wanted = Expectation(width=64, height=64, num_frames=107, metadata=result.metadata)
    report = check_mp4(result.mp4[0], wanted)
    assert report.passed, str(report)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MATRIX)
def test_the_released_matrix_plays(server: RunningServer, name: str) -> None:
    result = generate(server, **MATRIX[name])
    check(result)
    task = "fl2va" if "keyframes" in MATRIX[name] else "ref2va"
    assert result.metadata["task"] == task
    assert result.metadata["stages"]["condition_encoder"]["rows"] > 0


@pytest.fixture
def spoken(tmp_path: Path) -> Path:
    try:
        return speech(tmp_path / "speech.wav")
    except MissingMediaError as missing:
        pytest.skip(reason=str(missing))


def test_speech_and_a_face(server: RunningServer, spoken: Path) -> None:
    check(generate(server, references=[FACE, spoken]))


def test_locked_speech_is_the_sound_of_the_clip(server: RunningServer, spoken: Path) -> None:
    locked = {"references": [FACE, spoken], "audio_mode": "lock_source"}
    result = generate(server, **locked)
    report = check_mp4(result.mp4[0], Expectation(metadata=result.metadata))
    assert report.failed == ("sound",)  # one voice, doubled: left equals right, and nothing else
    assert hashes(generate(server, **locked, seed=1))[1] == hashes(result)[1]


def test_each_condition_is_reported(server: RunningServer) -> None:
    told = generate(server, keyframes=[CAT, ROCKET]).metadata
    assert [one["kind"] for one in told["conditions"]] == ["keyframe"] * 2
    assert [one["frame_index"] for one in told["conditions"]] == [0, -1]
    assert (told["fps"], told["sample_rate_hz"]) == (24, 32_000)
    assert {"rms", "peak"} <= set(told["clips"][0]["audio"])


def test_each_field_of_a_condition_changes_the_clip(server: RunningServer) -> None:
    frames = {
        name: tuple(hashes(generate(server, **fields))[0])
        for name, fields in {
            "none": {},
            "first": {"keyframes": [CAT]},
            "last": {"keyframes": [CAT], "frame_indices": [-1]},
            "other picture": {"keyframes": [ROCKET]},
        }.items()
    }
    assert len(set(frames.values())) == len(frames)


def test_http_grpc_and_a_name_give_the_same_clip(server: RunningServer) -> None:
    expected = hashes(generate(server, keyframes=[CAT, ROCKET]))
    assert hashes(generate(server, "http", keyframes=[CAT, ROCKET])) == expected
    assert hashes(generate(server, keyframes=["file:cat.png", ROCKET])) == expected


def test_clips_of_one_request_share_its_keyframes(server: RunningServer) -> None:
    fields = {"keyframes": [CAT, ROCKET], "noise_recipe": "single_stream", "return_frames": True}
    both = generate(server, **fields, seed=5, num_outputs=2)
    for index, mp4 in enumerate(both.mp4):
        alone = generate(server, **fields, seed=5 + index)
        assert frame_hashes(mp4) == frame_hashes(alone.mp4[0])
        np.testing.assert_array_equal(both.frames[index], alone.frames[0])


def test_names_outside_the_root_are_refused(server: RunningServer) -> None:
    for name in ("../cat.png", "/etc/passwd", "absent.png"):
        with pytest.raises(H3ClientError, match=r"^keyframes\[0\]: 'file:.* legal: ") as refusal:
            generate(server, keyframes=[f"file:{name}"])
        assert refusal.value.status == "INVALID_ARGUMENT"


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_ninety_megabytes_of_nonsense_are_refused_by_name(
    server: RunningServer, protocol: str
) -> None:
    noise = np.random.default_rng(0).bytes(45 * 1024**2)
    began = time.perf_counter()
    with pytest.raises(H3ClientError, match=r"^references\[0\]: unknown format") as refusal:
        generate(server, protocol, references=[noise, noise])
    assert refusal.value.status == "INVALID_ARGUMENT"
    assert time.perf_counter() - began < 20
    check(generate(server))


def test_a_picture_that_breaks_in_the_middle_leaves_no_job_behind(server: RunningServer) -> None:
    whole = CAT.read_bytes()
    half = len(whole) // 2
    with pytest.raises(H3ClientError, match=r"^keyframes\[0\]: ") as refusal:
        generate(server, keyframes=[whole[:half] + bytes(len(whole) - half)])
    assert refusal.value.status == "INVALID_ARGUMENT"
    with H3Client(server.grpc_url) as client:
        assert client.ping()["active"] == 0


def test_the_documented_example_runs(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", page(), re.DOTALL)
    here = example.replace("127.0.0.1:8001", server.grpc_url)
    here = here.replace('"NUM_INFERENCE_STEPS": 20', '"NUM_INFERENCE_STEPS": 3')
    monkeypatch.chdir(tmp_path)
    Path("first.png").write_bytes(CAT.read_bytes())
    names: dict[str, bytes] = {}
    exec(compile(here, "requests.md", "exec"), names)
    for task in ("t2va", "fl2va", "ref2va"):
        assert check_mp4(names[task], Expectation(width=128, height=128, num_frames=124)).passed
