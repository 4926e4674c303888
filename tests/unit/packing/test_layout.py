import pytest
import torch
from diffusers.modular_pipelines.minimax_h3.before_denoise import MiniMaxH3PrepareLayoutStep
from hypothesis import given
from hypothesis import strategies as st
from oracles.packed_rows import packed_rows

from minimax_h3.core.constants import Modality
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.core.lengths import audio_latents_from_frames, latents_from_frames, video_rows
from minimax_h3.packing.layout import (
    PackedLayout,
    Segment,
    TimeClass,
    assemble,
    audio_segment,
    pack_keyframe_request,
    padding_segment,
    text_segment,
    video_segment,
)

ANCHORS = [(), ("first",), ("last",), ("first", "last")]


def reference(
    tags: torch.Tensor, frames: int, height: int, width: int, audio: int, anchors: tuple[str, ...]
) -> tuple[torch.Tensor, ...]:
    return MiniMaxH3PrepareLayoutStep.build_packed_sequence(
        tags, frames, height, width, audio, (1, 2, 2), 2, 2, 0, anchors
    )


def pack(
    tags: torch.Tensor, frames: int, height: int, width: int, audio: int, anchors: tuple[str, ...]
) -> PackedLayout:
    return pack_keyframe_request(
        tags,
        latent_frames=frames,
        height=height,
        width=width,
        audio_latents=audio,
        anchors=anchors,
    )


def assert_reference(layout: PackedLayout, expected: tuple[torch.Tensor, ...]) -> None:
    positions, tags, video, audio, text, condition_video, condition_audio = expected
    assert layout.positions.dtype == torch.float64
    assert torch.equal(layout.positions, positions)
    assert torch.equal(layout.token_tags, tags)
    assert torch.equal(layout.video_indices, video)
    assert torch.equal(layout.audio_indices, audio)
    assert torch.equal(layout.text_indices, text)
    assert layout.num_condition_video_rows == condition_video
    assert layout.num_condition_audio_rows == condition_audio


@pytest.mark.parametrize("anchors", ANCHORS)
@pytest.mark.parametrize(
    ("frames", "height", "width"),
    [(124, 48, 84), (107, 4, 4), (141, 84, 48), (209, 48, 48), (362, 32, 126), (22, 6, 4)],
)
def test_layout_is_bitwise_the_reference(
    frames: int, height: int, width: int, anchors: tuple[str, ...]
) -> None:
    tags = torch.ones(60, dtype=torch.int64)
    tags[3 : 3 + 9 * len(anchors)] = 0
    grid = (latents_from_frames(frames), height, width, audio_latents_from_frames(frames))
    assert_reference(pack(tags, *grid, anchors), reference(tags, *grid, anchors))


@given(
    st.lists(st.sampled_from([0, 1]), min_size=1, max_size=40),
    st.integers(1, 40),
    st.integers(1, 6),
    st.integers(1, 6),
    st.integers(1, 50),
    st.sampled_from(ANCHORS),
)
def test_any_layout_is_bitwise_the_reference(
    tags: list[int], frames: int, lines: int, columns: int, audio: int, anchors: tuple[str, ...]
) -> None:
    grid = (frames, 2 * lines, 2 * columns, audio)
    layout = pack(torch.tensor(tags), *grid, anchors)
    assert_reference(layout, reference(torch.tensor(tags), *grid, anchors))
    covered = [row for span in layout.spans for row in range(span.start, span.start + span.rows)]
    assert covered == list(range(layout.num_rows))


@pytest.mark.parametrize("anchors", ANCHORS)
def test_layout_equals_the_row_by_row_table(anchors: tuple[str, ...]) -> None:
    tags = [1, 0, 0, 1]
    rows = packed_rows(tags, 7, 4, 6, 5, anchors)
    layout = pack(torch.tensor(tags), 7, 4, 6, 5, anchors)
    expected = torch.tensor([[row.t, row.h, row.w] for row in rows], dtype=torch.float64)
    torch.testing.assert_close(layout.positions, expected, rtol=0, atol=1e-12)
    assert layout.token_tags.tolist() == [row.tag for row in rows]
    clocks = [TimeClass(value).name.lower() for value in layout.time_classes.tolist()]
    assert clocks == [row.clock for row in rows]
    for stream, indices in (
        ("text", layout.text_indices),
        ("audio", layout.audio_indices),
        ("video", layout.video_indices),
    ):
        assert indices.tolist() == [i for i, row in enumerate(rows) if row.stream == stream]


def test_worked_example() -> None:
    layout = pack(torch.ones(60, dtype=torch.int64), 37, 48, 84, 207, ())
    places = [(span.stream, span.start, span.rows) for span in layout.spans]
    assert places == [
        (Modality.TEXT, 0, 60),
        (Modality.AUDIO, 60, 414),
        (Modality.VIDEO, 474, 37_296),
    ]
    assert layout.num_rows == 37_770
    assert layout.stream_rows(Modality.VIDEO) == video_rows(1344, 768, 124)
    # R channel at 267, and the last row of the last frame.
    assert layout.positions[266, 0] == layout.positions[473, 0] == 60 + 206
    assert layout.positions[267, 0] == 60


def test_text_length_moves_the_media_clock() -> None:
    short, long = (
        pack(torch.ones(rows, dtype=torch.int64), 7, 4, 4, 5, ("first", "last")) for rows in (3, 10)
    )
    moved = long.positions[10:] - short.positions[3:]
    torch.testing.assert_close(moved[:, 0], torch.full_like(moved[:, 0], 7.0))
    assert not moved[:, 1:].any()


def test_vision_rows_in_the_text_are_text_rows_with_the_video_tag() -> None:
    tags = torch.tensor([1, 0, 0, 1])
    layout = pack(tags, 2, 4, 4, 3, ("first",))
    assert layout.text_indices.tolist() == [0, 1, 2, 3]
    assert layout.token_tags[:4].tolist() == tags.tolist()
    assert layout.time_classes[:4].tolist() == [TimeClass.VIDEO] * 4
    assert layout.video_indices[0] == 4


def test_a_reference_block_is_one_more_builder() -> None:
    """Reference rows come in front of the targets in both streams, and count as conditions."""
    clean = Segment(
        Modality.AUDIO,
        TimeClass.AUDIO_CONDITION,
        torch.zeros(6, 3, dtype=torch.float64),
        torch.full((6,), 2),
    )
    text = text_segment(torch.ones(2, dtype=torch.int64))
    layout = assemble([text, clean, audio_segment(2.0, 4, 4, 4), video_segment(2.0, 2, 4, 4)])
    assert layout.num_condition_audio_rows == 6
    assert layout.num_condition_video_rows == 0
    assert layout.audio_indices.tolist() == list(range(2, 16))
    assert [span.source_start for span in layout.stream_spans(Modality.AUDIO)] == [0, 6]


def test_padding_belongs_to_no_stream() -> None:
    layout = assemble([text_segment(torch.ones(2, dtype=torch.int64)), padding_segment(3)])
    assert layout.num_rows == 5
    assert layout.token_tags.tolist() == [1, 1, -1, -1, -1]
    assert layout.video_indices.numel() == layout.audio_indices.numel() == 0


@pytest.mark.parametrize(
    ("tags", "named"),
    [
        (torch.tensor([1, 2]), "text_tags: 2 "),
        (torch.tensor([-1]), "text_tags: -1 "),
        (torch.ones(0, dtype=torch.int64), r"text_tags: shape \[0\]"),
        (torch.ones(1, 3, dtype=torch.int64), r"text_tags: shape \[1, 3\]"),
    ],
)
def test_bad_text_tags_are_refused(tags: torch.Tensor, named: str) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        pack(tags, 2, 4, 4, 3, ())


def test_unknown_anchor_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="'middle' is not legal; legal: first, last"):
        pack(torch.tensor([1]), 2, 4, 4, 3, ("middle",))
