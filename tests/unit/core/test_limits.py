"""The one table of limits: every end is legal, everything beyond is refused in its words."""

import math

import pytest

from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.core.limits import LIMITS, SECONDS_SLACK, Limit, as_markdown, check


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_both_ends_are_legal_and_what_is_beyond_is_refused(name: str) -> None:
    limit = LIMITS[name]
    step = (1 if limit.unit in ("bytes", "pixels") else 0.01) + 2 * SECONDS_SLACK
    for value in (limit.low, limit.high):
        check(name, value, "references[0]")
    for value in (limit.low - step, limit.high + step, math.nan, math.inf, -math.inf):
        with pytest.raises(InvalidRequestError) as refusal:
            check(name, value, "references[0]")
        message = str(refusal.value)
        assert message.startswith("references[0]: ")
        assert message.endswith(f"legal: {limit.legal}")
        assert limit.unit in message


def test_words() -> None:
    assert LIMITS["video_seconds"].legal == "2..15 s of video"
    assert LIMITS["video_bytes"].legal == "1..52,428,800 bytes (50 MiB)"
    assert Limit(0.25, 4, "width / height", "").legal == "0.25..4 width / height"
    with pytest.raises(InvalidRequestError, match=r"^references\[1\]: 1\.234 s of video \(one"):
        check("video_seconds", 1.23412345, "references[1]")


def test_a_container_may_round_its_length() -> None:
    check("video_seconds", 15.04, "references[0]")
    check("video_seconds", 1.97, "references[0]")


def test_the_released_counts() -> None:
    """<= 9 images, <= 3 videos, <= 3 sounds, <= 12 files."""
    highs = [LIMITS[name].high for name in ("images", "videos", "audios", "references")]
    assert highs == [9, 3, 3, 12]
    assert LIMITS["keyframes"].high == 2


def test_the_table_is_printed_whole() -> None:
    assert as_markdown().count("\n") == len(LIMITS) + 2
    assert all(f"| `{name}` | {limit.legal} |" in as_markdown() for name, limit in LIMITS.items())
