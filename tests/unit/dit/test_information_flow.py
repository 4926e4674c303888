"""Who may move whom: one request is one document; documents and padding are walls."""

from dataclasses import replace

import pytest
import torch
from oracles.diffusers_dit import (
    ATTENTION,
    NARROW,
    diffusers_transformer,
    random_inputs,
    random_transformer,
    relative_error,
    run_diffusers,
    small_layout,
)

from minimax_h3.core.constants import Modality
from minimax_h3.dit.block import Documents
from minimax_h3.dit.model import MiniMaxH3Transformer, Velocities
from minimax_h3.ops.rope import rotary_table
from minimax_h3.packing.batch import PackedBatch, pack_batch
from minimax_h3.packing.layout import PackedLayout
from minimax_h3.packing.row_times import RowTimes, class_times, row_times

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
MODEL = random_transformer(NARROW)
SOLO_TOLERANCE = 1e-6  # the same rows in a larger matrix product


def run(
    inputs: Inputs,
    layout: PackedLayout,
    times: RowTimes,
    bounds: tuple[int, ...] | None = None,
    model: MiniMaxH3Transformer = MODEL,
) -> Velocities:
    bounds = bounds or (0, layout.num_rows)
    with torch.inference_mode():
        return model(*inputs, layout, times.times, times.index, bounds, ATTENTION)


def disturbed(inputs: Inputs, which: int, rows: slice = slice(None)) -> Inputs:
    changed = [tensor.clone() for tensor in inputs]
    changed[which][rows] += 1.0
    return changed[0], changed[1], changed[2]


@pytest.mark.parametrize("which", [0, 1, 2], ids=["video", "audio", "text"])
@pytest.mark.parametrize("anchors", [(), ("first",)])
def test_every_stream_moves_every_other_in_its_request(
    which: int, anchors: tuple[str, ...]
) -> None:
    layout = small_layout(anchors)
    inputs, times = random_inputs(NARROW, layout), row_times(layout, class_times(0.3, 0.6))
    before, after = run(inputs, layout, times), run(disturbed(inputs, which), layout, times)
    # All rows, not only some: attention is full.
    assert bool((before.video != after.video).any(dim=1).all())
    assert bool((before.audio != after.audio).any(dim=1).all())


def test_a_condition_row_moves_the_targets() -> None:
    layout = small_layout(("first",))
    inputs, times = random_inputs(NARROW, layout), row_times(layout, class_times(0.3, 0.6))
    before = run(inputs, layout, times)
    after = run(disturbed(inputs, 0, slice(0, 1)), layout, times)
    assert bool((before.video != after.video).any(dim=1).all())


def batch_of_two() -> tuple[PackedBatch, Inputs, RowTimes]:
    batch = pack_batch([small_layout(), small_layout(("first",), text_rows=8)], multiple=64)
    clocks = torch.cat([class_times(0.3, 0.6), class_times(0.1, 0.2)])
    return batch, random_inputs(NARROW, batch.layout), row_times(batch.layout, clocks)


@pytest.mark.parametrize("which", [0, 1, 2], ids=["video", "audio", "text"])
def test_another_document_moves_nothing(which: int) -> None:
    batch, inputs, times = batch_of_two()
    text_rows = (5, 8)
    cut = (batch.video_rows[0], batch.audio_rows[0], text_rows[0])
    changed = disturbed(inputs, which, slice(cut[which], None))
    before = run(inputs, batch.layout, times, batch.cu_seqlens)
    after = run(changed, batch.layout, times, batch.cu_seqlens)
    assert torch.equal(before.video[: cut[0]], after.video[: cut[0]])
    assert torch.equal(before.audio[: cut[1]], after.audio[: cut[1]])
    assert not torch.equal(before.video[cut[0] :], after.video[cut[0] :])


def test_padding_moves_nothing() -> None:
    """Other positions, tags and times of the padding rows change no bit of the real ones."""
    batch, inputs, times = batch_of_two()
    used = batch.cu_seqlens[-2]
    assert used < batch.layout.num_rows
    positions, tags, index = (
        tensor.clone() for tensor in (batch.layout.positions, batch.layout.token_tags, times.index)
    )
    positions[used:], tags[used:], index[used:] = 17.0, 2, 0
    strange = replace(batch.layout, positions=positions, token_tags=tags)
    before = run(inputs, batch.layout, times, batch.cu_seqlens)
    after = run(inputs, strange, RowTimes(times.times, index), batch.cu_seqlens)
    assert torch.equal(before.video, after.video)
    assert torch.equal(before.audio, after.audio)


@pytest.mark.parametrize("multiple", [1, 64])
def test_a_batch_equals_its_requests_alone(multiple: int) -> None:
    layouts = [small_layout(), small_layout(("first", "last"), text_rows=8)]
    clocks = [class_times(0.3, 0.6), class_times(0.1, 0.2)]
    batch = pack_batch(layouts, multiple)
    solo = [random_inputs(NARROW, layout, seed=i) for i, layout in enumerate(layouts)]
    inputs = tuple(torch.cat(pair) for pair in zip(*solo, strict=True))
    times = row_times(batch.layout, torch.cat(clocks))
    together = run((inputs[0], inputs[1], inputs[2]), batch.layout, times, batch.cu_seqlens)
    parts = zip(
        together.video.split(batch.video_rows), together.audio.split(batch.audio_rows), strict=True
    )
    for layout, clock, own, (video, audio) in zip(layouts, clocks, solo, parts, strict=True):
        alone = run(own, layout, row_times(layout, clock))
        assert relative_error(video, alone.video) <= SOLO_TOLERANCE
        assert relative_error(audio, alone.audio) <= SOLO_TOLERANCE


def test_wrong_bounds_would_leak() -> None:
    """The wall is cu_seqlens: one document over both requests gives other results."""
    batch, inputs, times = batch_of_two()
    walled = run(inputs, batch.layout, times, batch.cu_seqlens)
    open_ = run(inputs, batch.layout, times, (0, batch.layout.num_rows))
    assert relative_error(open_.video, walled.video) > 1e-2


def test_tags_do_not_choose_rope_frequencies() -> None:
    """A row's rotation comes from its position alone; tags choose its AdaLN row, nothing else."""
    layout = small_layout()
    tags = layout.token_tags.clone()
    tags[0] = Modality.VIDEO
    retagged = replace(layout, token_tags=tags)
    inputs, times = random_inputs(NARROW, layout), row_times(layout, class_times(0.3, 0.6))
    with torch.inference_mode():
        prepared = [
            MODEL.prepare(inputs[2], each, times.index, (0, layout.num_rows), ATTENTION)
            for each in (layout, retagged)
        ]
    assert torch.equal(prepared[0].rotary.cos, prepared[1].rotary.cos)
    assert torch.equal(prepared[0].rotary.sin, prepared[1].rotary.sin)
    moved = prepared[0].adaln_rows != prepared[1].adaln_rows
    assert moved.nonzero().flatten().tolist() == [0]
    # All three axes share one set of frequencies, so swapping axes swaps blocks of the table.
    table, freqs = layout.positions, NARROW.rope_freqs
    swapped = rotary_table(table[:, [1, 0, 2]], freqs, NARROW.rope_theta).cos
    straight = rotary_table(table, freqs, NARROW.rope_theta).cos
    assert torch.equal(swapped[..., :freqs], straight[..., freqs : 2 * freqs])
    # And the reference agrees on the retagged sequence.
    expected = run_diffusers(diffusers_transformer(MODEL), *inputs, retagged, times)
    assert relative_error(run(inputs, retagged, times).video, expected[0]) <= 1e-5


def test_the_refiner_sees_only_text_no_rope_no_time() -> None:
    layout = small_layout(("first",), text_rows=6)
    _, _, text = random_inputs(NARROW, layout)
    bounds = (0, layout.num_rows)
    with torch.inference_mode():
        early, late = (
            MODEL.prepare(
                text, layout, row_times(layout, class_times(*clock)).index, bounds, ATTENTION
            ).text
            for clock in ((0.0, 0.0), (0.9, 0.95))
        )
        # The same text in another canvas, with other positions behind it.
        bare = small_layout(text_rows=6)
        index = row_times(bare, class_times(0.3, 0.6)).index
        elsewhere = MODEL.prepare(text, bare, index, (0, bare.num_rows), ATTENTION).text
        # No positions: shuffled rows come out shuffled.
        order = torch.tensor([4, 0, 5, 2, 1, 3])
        shuffled = MODEL.refine_text(text[order], Documents(ATTENTION, (0, 6)))
    assert torch.equal(early, late)
    assert torch.equal(early, elsewhere)
    torch.testing.assert_close(shuffled, early[order], rtol=0, atol=1e-5)


def test_the_refiner_keeps_requests_apart() -> None:
    text = torch.randn(9, NARROW.text_dim)
    other = text.clone()
    other[4:] += 1.0
    with torch.inference_mode():
        before, after = (
            MODEL.refine_text(each, Documents(ATTENTION, (0, 4, 9))) for each in (text, other)
        )
    assert torch.equal(before[:4], after[:4])
    assert not torch.equal(before[4:], after[4:])


def test_a_forward_leaves_its_inputs_alone() -> None:
    layout = small_layout(("first",))
    inputs, times = random_inputs(NARROW, layout), row_times(layout, class_times(0.3, 0.6))
    copies = [tensor.clone() for tensor in inputs]
    first = run(inputs, layout, times)
    assert all(torch.equal(a, b) for a, b in zip(inputs, copies, strict=True))
    again = run(inputs, layout, times)
    assert torch.equal(first.video, again.video)
    assert torch.equal(first.audio, again.audio)
