from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles.diffusers_dit import small_layout

from minimax_h3.core.constants import Modality
from minimax_h3.packing.batch import document_bounds, pack_batch, text_bounds
from minimax_h3.packing.row_times import class_times, row_times


@pytest.mark.parametrize(
    ("lengths", "bounds"),
    [
        ([10, 20], (0, 10, 30)),
        ([10, 20, 15], (0, 10, 30, 45)),
        ([10, 0, 20], (0, 10, 30)),
        ([37_770, 0], (0, 37_770)),
        ([], (0,)),
    ],
)
def test_document_bounds(lengths: list[int], bounds: tuple[int, ...]) -> None:
    assert document_bounds(lengths) == bounds


@given(st.lists(st.integers(0, 9)))
def test_bounds_rise_strictly_and_cover_everything(lengths: list[int]) -> None:
    bounds = document_bounds(lengths)
    assert bounds[-1] == sum(lengths)
    assert all(a < b for a, b in pairwise(bounds))
    assert len(bounds) == 1 + sum(length > 0 for length in lengths)


def test_a_batch_keeps_each_request_as_it_was() -> None:
    layouts = [small_layout(), small_layout(("first", "last"), text_rows=8)]
    batch = pack_batch(layouts)
    first = layouts[0].num_rows
    assert batch.cu_seqlens == (0, first, first + layouts[1].num_rows)
    for layout, rows in ((layouts[0], slice(0, first)), (layouts[1], slice(first, None))):
        assert torch.equal(batch.layout.positions[rows], layout.positions)
        assert torch.equal(batch.layout.token_tags[rows], layout.token_tags)
    for stream, name in ((Modality.VIDEO, "video"), (Modality.AUDIO, "audio")):
        expected = [layouts[0].stream_rows(stream), layouts[1].stream_rows(stream)]
        assert list(getattr(batch, f"{name}_rows")) == expected
        joined = torch.cat(
            [
                getattr(layouts[0], f"{name}_indices"),
                first + getattr(layouts[1], f"{name}_indices"),
            ]
        )
        assert torch.equal(getattr(batch.layout, f"{name}_indices"), joined)
    assert text_bounds(batch.layout, batch.cu_seqlens) == (0, 5, 13)


def test_stream_rows_of_later_requests_follow_those_of_earlier_ones() -> None:
    batch = pack_batch([small_layout(("first",)), small_layout()])
    for stream in Modality:
        spans = batch.layout.stream_spans(stream)
        starts = [span.source_start for span in spans]
        assert starts == [sum(span.rows for span in spans[:i]) for i in range(len(spans))]


def test_each_request_keeps_its_own_clocks() -> None:
    layouts = [small_layout(), small_layout(("first",))]
    batch = pack_batch(layouts)
    clocks = [class_times(0.1, 0.2), class_times(0.3, 0.2)]
    together = row_times(batch.layout, torch.cat(clocks))
    apart = [row_times(layout, each) for layout, each in zip(layouts, clocks, strict=True)]
    per_row = torch.cat([each.times[each.index] for each in apart])
    assert torch.equal(together.times[together.index], per_row)
    assert together.times.numel() == 4


def test_padding_is_a_document_of_its_own() -> None:
    layout = small_layout()
    batch = pack_batch([layout], multiple=64)
    assert batch.layout.num_rows % 64 == 0
    assert batch.cu_seqlens == (0, layout.num_rows, batch.layout.num_rows)
    pad = slice(layout.num_rows, None)
    assert batch.layout.token_tags[pad].unique().tolist() == [-1]
    assert not batch.layout.positions[pad].any()
    assert torch.equal(batch.layout.video_indices, layout.video_indices)
    assert text_bounds(batch.layout, batch.cu_seqlens) == (0, 5)
    times = row_times(batch.layout, class_times(0.1, 0.2))
    assert times.times[times.index[pad]].unique().tolist() == [pytest.approx(0.1)]


def test_a_round_length_gets_no_padding_document() -> None:
    layout = small_layout()
    batch = pack_batch([layout], multiple=layout.num_rows)
    assert batch.cu_seqlens == (0, layout.num_rows)
