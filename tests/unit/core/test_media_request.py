"""Tasks, files and the fields about them: what goes together and how the refusal reads."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimax_h3.core.conditions import AUDIO, DRIVING_AUDIO, IMAGE, VIDEO
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.core.media_rules import (
    check_media,
    check_request_bytes,
    condition_kinds,
    start_times,
    with_canvas,
)
from minimax_h3.core.request import GenerationRequest

A, B, C = b"a", b"b", b"c"
LOCK = {"audio_mode": "lock_source"}
TOGETHER = (
    r"keyframes, references: 1 and 1 files are not legal together; legal: keyframes .*--first, "
    r"--last\) for task fl2va, or references \(--ref\) for task ref2va"
)


@dataclass
class Facts:
    kind: str
    width: int = 640
    height: int = 480
    seconds: float = 0.0


PICTURE, CLIP, SOUND = Facts(IMAGE), Facts(VIDEO, seconds=4.0), Facts(AUDIO, 0, 0, 4.0)
BY_LETTER = {"i": PICTURE, "v": CLIP, "a": SOUND}


def request(**fields: object) -> GenerationRequest:
    return GenerationRequest.from_fields({"prompt": "p", **fields})


def referring(letters: str, **fields: object) -> tuple[GenerationRequest, list[Facts]]:
    """A request with one reference a letter: i(mage), v(ideo), a(udio)."""
    return request(references=[A] * len(letters), **fields), [BY_LETTER[one] for one in letters]


@pytest.mark.parametrize(
    ("fields", "task"),
    [
        ({}, "t2va"),
        ({"keyframes": [A]}, "fl2va"),
        ({"keyframes": A}, "fl2va"),  # a single value stands for a list of one
        ({"keyframes": [A, B]}, "fl2va"),
        ({"references": [A]}, "ref2va"),
        ({"references": [A, B, C]}, "ref2va"),
        ({"references": [A], **LOCK}, "t2va"),
        ({"references": [A], "keyframes": [B], **LOCK}, "fl2va"),
        ({"references": [A, B], **LOCK}, "ref2va"),
        ({"references": [A], "task": "t2va", **LOCK}, "t2va"),
    ],
)
def test_the_task_follows_from_the_files(fields: dict[str, object], task: str) -> None:
    assert request(**fields).task == task


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": "fl2va"}, "keyframes: absent for task fl2va; legal: 1 or 2 pictures"),
        ({"task": "ref2va"}, "references: absent for task ref2va; legal: at least one image"),
        ({"task": "t2va", "keyframes": [A]}, "keyframes: 1 is not legal; legal: absent for task"),
        ({"task": "t2va", "references": [A]}, "references: 1 is not legal; legal: absent for task"),
        ({"task": "t2va", "keyframes": [A]}, "they make fl2va"),
        ({"task": "fl2va", "references": [A]}, "keyframes: absent for task fl2va"),
        ({"task": "t2va", "references": [A]}, "they make ref2va"),
        ({"task": "fl2va", "keyframes": [A], "references": [B]}, TOGETHER),
        ({"keyframes": [A], "references": [B]}, TOGETHER),
        ({"task": "ref2va", "keyframes": [A]}, "references: absent"),
        ({"task": "ref2va", "keyframes": [A], "references": [B]}, TOGETHER),
        ({"keyframes": [A], "references": [B, C], **LOCK}, "1 and 2 files are not legal together"),
        ({"keyframes": []}, "keyframes: 0 keyframes"),
        ({"keyframes": [A, B, C]}, "keyframes: 3 keyframes"),
        ({"references": []}, "references: 0 references"),
        ({"references": [A] * 13}, "references: 13 references .*legal: 1..12"),
        ({"keyframes": ["a.png"]}, "keyframes: 'a.png' is not legal; legal: the bytes of a file"),
        ({"references": "https://x/y"}, "references: 'https://x/y' is not legal; .*tensor REF"),
        ({"references": [[A]]}, "references: .*the bytes of a file"),
        ({"keyframes": None}, "keyframes: null is not legal"),
        ({"frame_indices": [0]}, "frame_indices: .*absent without keyframes"),
        ({"keyframes": [A], "frame_indices": [1]}, r"frame_indices: \[1\] .* \[0\] or \[-1\]"),
        ({"keyframes": [A], "frame_indices": [0, -1]}, "frame_indices: .*for 1 keyframes"),
        ({"keyframes": [A, B], "frame_indices": [0]}, r"frame_indices: .*\[0, -1\]"),
        ({"keyframes": [A, B], "frame_indices": [-1, 0]}, "frame_indices: .*for 2 keyframes"),
        ({"keyframes": [A, B], "frame_indices": [0, 0]}, "frame_indices: .*for 2 keyframes"),
        ({"keyframes": [A], "frame_indices": [True]}, "frame_indices: true is not legal"),
        ({"keyframes": [A], "frame_indices": [0.0]}, "frame_indices: 0.0 is not legal"),
        ({"keyframes": [A], "frame_indices": []}, "frame_indices: .*for 1 keyframes"),
        ({"keyframes": [A], "aspect_ratio": "1:1"}, "aspect_ratio: .*absent with keyframes"),
        ({"keyframes": [A], "width": 64}, "width: 64 is not legal; .*together"),
        ({"audio_mode": "loud"}, "audio_mode: 'loud' is not legal; legal: one of native"),
        (LOCK, "audio_mode: 'lock_source' is not legal; legal: native without a sound"),
        ({"references": [A], "start_time_seconds": [-1.0]}, "start_time_seconds: .*0 or more"),
        ({"references": [A], "start_time_seconds": "1"}, "start_time_seconds: '1' is not legal"),
        ({"references": [A], "start_time_seconds": [0.0] * 4}, "start_time_seconds: .*one per"),
        ({"references": [A], "start_time_seconds": float("nan")}, "start_time_seconds: nan"),
        ({"images": [A]}, "images: not a field here; legal: keyframes or references"),
        ({"input_references": [A]}, "input_references: not a field here; legal: references"),
        ({"last_image": A}, "last_image: not a field here"),
        ({"refrences": [A]}, "refrences: unknown request field"),
    ],
)
def test_refused_by_name(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        request(**fields)


def test_default_signatures() -> None:
    assert request(keyframes=[A]).frame_indices == (0,)
    assert request(keyframes=[A], frame_indices=-1).frame_indices == (-1,)
    assert request(keyframes=[A, B]).frame_indices == (0, -1)


def test_the_canvas_follows_the_first_keyframe_unless_a_size_is_given() -> None:
    asked = request(keyframes=[A], frame_indices=[-1])
    assert (asked.width, asked.height) == (0, 0)
    wide = with_canvas(asked, [Facts(IMAGE, 1280, 720)])
    assert (wide.width, wide.height) == (1344, 768)
    both = with_canvas(request(keyframes=[A, B]), [Facts(IMAGE, 720, 1280), PICTURE])
    assert (both.width, both.height) == (768, 1344)
    sized = with_canvas(request(keyframes=[A], width=64, height=96), [PICTURE])
    assert (sized.width, sized.height) == (64, 96)
    assert request(references=[A]).width == 1344  # references never set the canvas


@pytest.mark.parametrize(
    "letters",
    [*("iii", "i", "iv", "va", "iva", "iaa", "v", "vv", "vvv", "iiiiiiiii", "iiiiiivvvaaa"), "aai"],
)
def test_the_released_matrix(letters: str) -> None:
    asked, facts = referring(letters)
    short = [Facts(one.kind, one.width, one.height, min(one.seconds, 3.0)) for one in facts]
    check_media(asked, short)
    assert condition_kinds(asked, short) == [one.kind for one in facts]


@pytest.mark.parametrize(
    ("letters", "message"),
    [
        ("a", "references: sound alone, 1 of it, is not legal"),
        ("aaa", "at least one image or video"),
        ("i" * 10, "references: 10 reference images .*legal: 0..9"),
        ("vvvv", "references: 4 reference videos"),
        ("iaaaa", "references: 4 reference audios"),
    ],
)
def test_other_mixes_are_refused(letters: str, message: str) -> None:
    asked, facts = referring(letters)
    with pytest.raises(InvalidRequestError, match=message):
        check_media(asked, facts)


@pytest.mark.parametrize(
    ("letters", "legal"),
    [("a", True), ("ia", True), ("iva", True), ("i", False), ("iaa", False), ("v", False)],
)
def test_lock_source_keeps_exactly_one_sound(letters: str, legal: bool) -> None:
    asked, facts = referring(letters, **LOCK)
    if legal:
        check_media(asked, facts)
        kinds = condition_kinds(asked, facts)
        assert kinds.count(DRIVING_AUDIO) == 1
        assert AUDIO not in kinds
    else:
        with pytest.raises(InvalidRequestError, match=r"^audio_mode: .*keeps exactly one"):
            check_media(asked, facts)


def test_one_start_per_reference_video() -> None:
    asked, facts = referring("ivav", start_time_seconds=[0.5, 2.0])
    assert start_times(asked, facts) == [0.0, 0.5, 0.0, 2.0]
    check_media(asked, facts)
    for starts in ([1.0], [0.5, 1.0, 1.0]):
        with pytest.raises(InvalidRequestError, match=r"one value per reference video.* 2"):
            start_times(referring("ivav", start_time_seconds=starts)[0], facts)
    with pytest.raises(InvalidRequestError, match="of which there are 0"):
        start_times(*referring("i", start_time_seconds=0.0))


@pytest.mark.parametrize("start_s", [2.01, 4.0, 1e9])
def test_two_seconds_of_a_video_must_be_left(start_s: float) -> None:
    asked, facts = referring("v", start_time_seconds=start_s)
    with pytest.raises(InvalidRequestError, match=r"^start_time_seconds: .*0\.\.2 s for ref"):
        check_media(asked, facts)


def test_sums_of_seconds() -> None:
    long = Facts(VIDEO, seconds=8.0)
    with pytest.raises(InvalidRequestError, match=r"^references: 16 s of video"):
        check_media(request(references=[A, B]), [long, long])
    check_media(request(references=[A, B], start_time_seconds=[1.0, 0.5]), [long, long])
    sound = Facts(AUDIO, 0, 0, 8.0)
    with pytest.raises(InvalidRequestError, match=r"^references: 16 s of sound"):
        check_media(request(references=[A, B, C]), [PICTURE, sound, sound])


def test_bytes_of_all_files() -> None:
    check_request_bytes([])
    with pytest.raises(InvalidRequestError, match=r"keyframes, references: .*256 MiB"):
        check_request_bytes([bytes(129 * 1024**2)] * 2)


@given(
    st.text("iva", min_size=1, max_size=13),
    st.booleans(),
    st.lists(st.floats(0, 5), max_size=4),
)
def test_any_mix_is_settled_or_refused(letters: str, locked: bool, starts: list[float]) -> None:
    fields: dict[str, object] = {"references": [A] * len(letters)}
    fields |= LOCK if locked else {}
    fields |= {"start_time_seconds": starts} if starts else {}
    facts = [BY_LETTER[one] for one in letters]
    try:
        asked = request(**fields)
        check_media(asked, facts)
    except InvalidRequestError:
        return
    counts = [letters.count(one) for one in "iva"]
    assert all(count <= most for count, most in zip(counts, (9, 3, 3), strict=True))
    assert len(letters) <= 12
    assert not locked or counts[2] == 1
    assert asked.task == ("ref2va" if counts[0] + counts[1] else "t2va")
