"""Preprocess with real files: what becomes of a request before anything is computed."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from preprocess_served import Served, files, wav_bytes
from preprocess_served import picture_bytes as png

from h3_client.sample_media import clip, picture
from minimax_h3.control.job_table import JobTable
from minimax_h3.control.registry import Limits
from minimax_h3.core.conditions import AUDIO, DRIVING_AUDIO, IMAGE, KEYFRAME, VIDEO
from minimax_h3.core.errors import CapacityError, InvalidRequestError, NotAvailableError
from minimax_h3.stages import preprocess
from minimax_h3.stages.base import text_tensor
from minimax_h3.stages.media_files import MediaFiles

CAT, ROCKET = picture("chelsea.png").read_bytes(), picture("rocket.jpg").read_bytes()
BUNNY = clip("bigbuckbunny.mp4").read_bytes()
PHONE = clip("carphone_pristine.mp4").read_bytes()


@pytest.fixture(scope="module")
def served(tiny_checkpoint: Path) -> Served:
    return Served(tiny_checkpoint)


@pytest.fixture(autouse=True)
def _fresh_jobs(request: pytest.FixtureRequest) -> None:
    if "served" in request.fixturenames:
        request.getfixturevalue("served").jobs.table = JobTable(Limits(1, 8, 8, 60.0))


def text_options(**options: object) -> NDArray[np.generic]:
    return text_tensor(json.dumps(options))


def test_a_prompt_alone_has_no_conditions(served: Served) -> None:
    plan, answer = served.run()
    assert (plan.task, plan.conditions) == ("t2va", ())
    assert answer["PIXEL_VALUES"].shape[0] == 0
    assert answer["IMAGE_GRID_THW"].shape == answer["VIDEO_GRID_THW"].shape == (0, 3)
    assert (answer["TEXT_TAGS"] == 1).all()


@pytest.mark.parametrize(
    ("keyframes", "indices", "expected"),
    [
        ((CAT,), None, [0]),
        ((CAT,), [0], [0]),
        ((CAT,), [-1], [-1]),
        ((CAT, ROCKET), None, [0, -1]),
        ((CAT, ROCKET), [0, -1], [0, -1]),
    ],
)
def test_one_block_a_keyframe_and_nothing_invented(
    served: Served, keyframes: tuple[bytes, ...], indices: list[int] | None, expected: list[int]
) -> None:
    given = None if indices is None else np.array(indices, np.int64)
    plan, answer = served.run(KEYFRAMES=files(*keyframes), FRAME_INDICES=given)
    assert plan.task == "fl2va"
    assert [condition.frame_index for condition in plan.conditions] == expected
    assert {condition.kind for condition in plan.conditions} == {KEYFRAME}
    assert sum(condition.video_rows for condition in plan.conditions) == 4 * len(keyframes)
    assert plan.packed_rows == len(answer["TOKEN_IDS"]) + 4 * len(keyframes) + 414 + 148
    assert answer["IMAGE_GRID_THW"].shape == (len(keyframes), 3)
    assert set(answer["TEXT_TAGS"].reshape(-1)) == {0, 1}


@pytest.mark.parametrize(("width", "height"), [(32, 32), (64, 96)])
def test_the_smallest_canvases(served: Served, width: int, height: int) -> None:
    size = {"WIDTH": np.array([width], np.int64), "HEIGHT": np.array([height], np.int64)}
    plan, _ = served.run(KEYFRAMES=files(png(width, height)), **size)
    assert plan.conditions[0].video_rows == width * height // 1024


@pytest.mark.parametrize(
    ("source", "canvas"),
    [((1280, 720), (1344, 768)), ((720, 1280), (768, 1344)), ((512, 512), (768, 768))],
)
def test_the_canvas_follows_the_first_keyframe(
    served: Served, source: tuple[int, int], canvas: tuple[int, int]
) -> None:
    last_alone = np.array([-1], np.int64)
    plan, _ = served.run(
        KEYFRAMES=files(png(*source)), FRAME_INDICES=last_alone, WIDTH=None, HEIGHT=None
    )
    assert (plan.width, plan.height) == canvas
    condition = plan.conditions[0]
    assert (condition.width, condition.height) == canvas


# name: references, their kinds as conditions, whether each has sound
MATRIX = {
    "three images": ("iii", [IMAGE] * 3),
    "one image": ("i", [IMAGE]),
    "image, video": ("iv", [IMAGE, VIDEO]),
    "video, audio": ("va", [VIDEO, AUDIO]),
    "image, video, audio": ("iva", [IMAGE, VIDEO, AUDIO]),
    "image, two audios": ("iaa", [IMAGE, AUDIO, AUDIO]),
    "video with sound": ("b", [VIDEO]),
    "two videos": ("vb", [VIDEO, VIDEO]),
}


@pytest.mark.parametrize("name", MATRIX)
def test_reference_matrix(served: Served, name: str, wav: bytes) -> None:
    letters, kinds = MATRIX[name]
    by_letter = {"i": png(80, 48), "v": PHONE, "b": BUNNY, "a": wav}
    plan, answer = served.run(REFERENCES=files(*(by_letter[one] for one in letters)))
    assert plan.task == "ref2va"
    assert [condition.kind for condition in plan.conditions] == kinds
    assert [condition.source for condition in plan.conditions] == list(range(len(kinds)))
    for condition, letter in zip(plan.conditions, letters, strict=True):
        assert (condition.audio_latents > 0) is (letter in "ab")
        if letter == "i":  # short edge 2048, sides to the nearest 32
            assert (condition.width, condition.height, condition.video_rows) == (3424, 2048, 6848)
        if letter in "vb":
            assert condition.num_frames % 17 == 5
    shown = len(answer["IMAGE_GRID_THW"]), len(answer["VIDEO_GRID_THW"])
    assert shown == (kinds.count(IMAGE), kinds.count(VIDEO))
    patches = np.concatenate((answer["IMAGE_GRID_THW"], answer["VIDEO_GRID_THW"])).prod(axis=1)
    factors = [1] * shown[0] + [2] * shown[1]  # both frames of a pair are sent
    assert answer["PIXEL_VALUES"].shape == ((patches * factors).sum(), 768)
    assert (answer["TEXT_TAGS"] == 0).sum() == patches.sum() // 4 + 2 * (
        shown[0] + answer["VIDEO_GRID_THW"][:, 0].sum()
    )


@pytest.fixture(scope="module")
def wav() -> bytes:
    return wav_bytes()


def test_the_callers_order_is_kept(served: Served, wav: bytes) -> None:
    order = (wav, png(64, 64), PHONE, png(96, 64))
    plan, _ = served.run(REFERENCES=files(*order))
    assert [condition.kind for condition in plan.conditions] == [AUDIO, IMAGE, VIDEO, IMAGE]


def test_a_locked_sound_is_no_reference_of_the_prompt(served: Served, wav: bytes) -> None:
    lock = text_tensor("lock_source")
    alone, answer = served.run(REFERENCES=files(wav), AUDIO_MODE=lock)
    assert (alone.task, alone.conditions[0].kind) == ("t2va", DRIVING_AUDIO)
    plain, expected = served.run()
    np.testing.assert_array_equal(answer["TOKEN_IDS"], expected["TOKEN_IDS"])
    assert alone.packed_rows == plain.packed_rows  # it takes the place of the target's own rows
    framed, _ = served.run(KEYFRAMES=files(CAT), REFERENCES=files(wav), AUDIO_MODE=lock)
    assert framed.task == "fl2va"
    assert [one.kind for one in framed.conditions] == [KEYFRAME, DRIVING_AUDIO]
    shown, _ = served.run(REFERENCES=files(png(64, 64), wav), AUDIO_MODE=lock)
    assert shown.task == "ref2va"


def test_a_start_shortens_a_video_and_its_sound(served: Served) -> None:
    whole, _ = served.run(REFERENCES=files(BUNNY))
    late, _ = served.run(REFERENCES=files(BUNNY), START_TIME_SECONDS=np.array([2.0], np.float32))
    assert late.conditions[0].start_s == 2.0
    assert late.conditions[0].num_frames < whole.conditions[0].num_frames
    assert late.conditions[0].audio_latents < whole.conditions[0].audio_latents


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"KEYFRAMES": files(b"garbage")}, r"^keyframes\[0\]: unknown format"),
        ({"KEYFRAMES": files(CAT, b"")}, r"^keyframes\[1\]: empty file"),
        ({"KEYFRAMES": files(CAT[:4000])}, r"^keyframes\[0\]: "),
        (
            {"KEYFRAMES": files(PHONE)},
            r"^keyframes\[0\]: MP4 \(\d+ bytes\) is not legal; legal: JPEG, PNG, WEBP$",
        ),
        ({"REFERENCES": files(b"GIF89a" + bytes(40))}, r"^references\[0\]: GIF"),
        ({"REFERENCES": files(b"https://x/y.png")}, r"^references\[0\]: unknown format"),
        ({"REFERENCES": files(png(64, 64), PHONE[:9000])}, r"^references\[1\]: "),
        ({"KEYFRAMES": files(png(500, 100))}, r"^keyframes\[0\]: 5 width / height"),
        ({"KEYFRAMES": files(png(8, 8))}, r"^keyframes\[0\]: 8 pixels a side"),
        ({"KEYFRAMES": files(CAT, CAT, CAT)}, "^keyframes: 3 keyframes"),
        (
            {"REFERENCES": files(CAT), "KEYFRAMES": files(CAT)},
            "^keyframes, references: 1 and 1 files are not legal together",
        ),
        ({"OPTIONS": text_options(keyframes=["a.png"])}, "^keyframes: .*the tensor KEYFRAMES"),
        (
            {"KEYFRAMES": files(CAT), "OPTIONS": text_options(keyframes=["a.png"])},
            r"^keyframes: \[.a.png.\] is not legal; legal: absent in OPTIONS beside the tensor",
        ),
    ],
)
def test_wrong_files_are_the_clients_error(
    served: Served, tensors: dict[str, NDArray[np.generic]], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        served.run(**tensors)
    assert served.jobs.active() == 0


def test_lists_may_travel_in_options(served: Served) -> None:
    plan, _ = served.run(KEYFRAMES=files(CAT), OPTIONS=text_options(frame_indices=[-1]))
    assert plan.conditions[0].frame_index == -1
    plan, _ = served.run(REFERENCES=files(BUNNY), OPTIONS=text_options(start_time_seconds=1.5))
    assert plan.conditions[0].start_s == 1.5


def test_the_row_budget_is_checked_before_a_pixel_is_decoded(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(*_: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(preprocess, "present_all", decode)
    # text 4,107 with the picture's tokens, 4,096 of the picture itself, 562 of the clip
    small = Served(tiny_checkpoint, max_packed_rows=8_000)
    with pytest.raises(InvalidRequestError, match=r"references: 64x64, .* 4096 rows of .*8000"):
        small.run(REFERENCES=files(png(64, 64)))
    assert small.jobs.active() == 0


def test_a_file_that_breaks_after_admission_gives_its_place_back(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = bytearray(CAT)
    damaged[len(damaged) // 2 :] = bytes(len(damaged) - len(damaged) // 2)
    with pytest.raises(InvalidRequestError, match=r"^keyframes\[0\]: "):
        served.run(KEYFRAMES=files(bytes(damaged)))
    assert served.jobs.active() == 0

    def fail(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(preprocess, "present_all", fail)
    with pytest.raises(ValueError, match="a bug"):
        served.run(KEYFRAMES=files(CAT))
    assert served.jobs.active() == 0


def test_a_full_server_decodes_nothing(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.jobs.table = JobTable(Limits(1, 1, 8, 60.0))
    served.run()

    def decode(*_: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(preprocess, "present_all", decode)
    with pytest.raises(CapacityError):
        served.run(KEYFRAMES=files(CAT))


def test_names_need_a_media_root(tiny_checkpoint: Path, served: Served, tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(CAT)
    with pytest.raises(NotAvailableError, match=r"^keyframes\[0\]: .file:cat.png. is not legal"):
        served.run(KEYFRAMES=files(b"file:cat.png"))
    named, _ = Served(tiny_checkpoint, media_root=str(tmp_path)).run(
        KEYFRAMES=files(b"file:cat.png")
    )
    given, _ = served.run(KEYFRAMES=files(CAT))
    assert named.conditions == given.conditions  # the digest included


def test_names_are_not_read_beyond_the_sum_of_all_files(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(12):
        with (tmp_path / f"{index}.mp4").open("wb") as file:
            file.truncate(50 * 1024**2)
    read: list[bytes] = []
    whole = MediaFiles.read

    def counted(self: MediaFiles, element: bytes, subject: str) -> bytes:
        read.append(element)
        return whole(self, element, subject)

    monkeypatch.setattr(MediaFiles, "read", counted)
    served = Served(tiny_checkpoint, media_root=str(tmp_path))
    with pytest.raises(InvalidRequestError, match=r"^keyframes, references: .*256 MiB"):
        served.run(REFERENCES=files(*[f"file:{index}.mp4".encode() for index in range(12)]))
    assert len(read) == 6


@pytest.mark.parametrize(
    ("task_type", "served_tasks"),
    [
        ("fl2va", {"t2va", "fl2va"}),
        ("ref2va", {"ref2va"}),
        ("combined", {"t2va", "fl2va", "ref2va"}),
    ],
)
def test_a_partition_serves_its_tasks(
    tiny_checkpoint: Path, task_type: str, served_tasks: set[str]
) -> None:
    server = Served(tiny_checkpoint, task_type=task_type)
    requests = {
        "t2va": {},
        "fl2va": {"KEYFRAMES": files(png(64, 64))},
        "ref2va": {"REFERENCES": files(png(64, 64))},
    }
    for task, tensors in requests.items():
        if task in served_tasks:
            assert server.run(**tensors)[0].task == task
        else:
            with pytest.raises(NotAvailableError, match=f"^task: '{task}' is not served here"):
                server.run(**tensors)


def test_a_prompt_beside_pictures_keeps_its_own_limit(served: Served) -> None:
    words = "x" * 8000
    plan, answer = served.run(prompt=words, REFERENCES=files(png(64, 64)))
    assert plan.text_rows == answer["TOKEN_IDS"].size > 8192
    with pytest.raises(InvalidRequestError, match=r"^prompt: 92.. tokens are not legal"):
        served.run(prompt=words + "y" * 1200, REFERENCES=files(png(64, 64)))
