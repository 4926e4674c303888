"""Layouts of ref2va against the reference's own builder, bit for bit, and against the tables."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles.denoise_loop import reference_layout
from oracles.packed_rows import reference_rows

from minimax_h3.core.conditions import AUDIO, DRIVING_AUDIO, IMAGE, KEYFRAME, VIDEO, Condition
from minimax_h3.core.constants import Modality
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.packing.layout import PackedLayout, TimeClass
from minimax_h3.packing.positions import latent_span, latent_units, width_axis
from minimax_h3.packing.references import pack_reference_request, reference_segments

PICTURE = Condition(IMAGE, 0, "", 3648, 2048, num_frames=1)
TALL = Condition(IMAGE, 0, "", 2048, 3648, num_frames=1)
SILENT_VIDEO = Condition(VIDEO, 0, "", 1344, 768, num_frames=124)
VIDEO_WITH_SOUND = Condition(VIDEO, 0, "", 768, 768, num_frames=107, audio_latents=200)
LONG_SOUND = Condition(VIDEO, 0, "", 64, 32, num_frames=22, audio_latents=603)
SOUND = Condition(AUDIO, 0, "", audio_latents=120)
SIGNATURES = {
    "image only": [PICTURE],
    "video with sound": [VIDEO_WITH_SOUND],
    "image, video, sound": [PICTURE, VIDEO_WITH_SOUND, SOUND],
    "three images": [PICTURE, TALL, PICTURE],
    "image and sound": [PICTURE, SOUND],
    "sound first": [SOUND, SILENT_VIDEO, PICTURE],
    "sound longer than its video": [LONG_SOUND, PICTURE],
    "twelve": [*[PICTURE] * 6, *[SILENT_VIDEO] * 2, LONG_SOUND, *[SOUND] * 3],
}


def pack(
    tags: torch.Tensor, grid: tuple[int, int, int], audio: int, references: list[Condition]
) -> PackedLayout:
    frames, height, width = grid
    return pack_reference_request(
        tags,
        latent_frames=frames,
        height=height,
        width=width,
        audio_latents=audio,
        references=references,
    )


def assert_bitwise(
    tags: torch.Tensor, grid: tuple[int, int, int], audio: int, references: list[Condition]
) -> None:
    layout = pack(tags, grid, audio, references)
    positions, all_tags, video, sound, text, held_video, held_sound = reference_layout(
        tags, grid, audio, references
    )
    assert torch.equal(layout.positions, positions)
    assert torch.equal(layout.token_tags, all_tags)
    assert torch.equal(layout.video_indices, video)
    assert torch.equal(layout.audio_indices, sound)
    assert torch.equal(layout.text_indices, text)
    assert layout.num_condition_video_rows == held_video
    assert layout.num_condition_audio_rows == held_sound
    assert held_video == sum(each.video_rows for each in references)
    assert held_sound == sum(each.audio_rows for each in references)


@pytest.mark.parametrize("references", SIGNATURES.values(), ids=SIGNATURES)
@pytest.mark.parametrize(("grid", "audio"), [((37, 48, 84), 207), ((107, 4, 6), 603)])
def test_layout_is_bitwise_the_reference(
    grid: tuple[int, int, int], audio: int, references: list[Condition]
) -> None:
    tags = torch.ones(60, dtype=torch.int64)
    tags[7:40] = 0
    assert_bitwise(tags, grid, audio, references)


sides = st.integers(1, 8).map(lambda cells: 32 * cells)
clips = st.integers(1, 8).map(lambda n: 17 * n + 5)
pictures = st.builds(
    Condition, st.just(IMAGE), st.just(0), st.just(""), sides, sides, num_frames=st.just(1)
)
videos = st.builds(
    Condition,
    *(st.just(VIDEO), st.just(0), st.just(""), sides, sides),
    num_frames=clips,
    audio_latents=st.sampled_from([0, 1, 37, 400]),
)
sounds = st.builds(
    Condition, st.just(AUDIO), st.just(0), st.just(""), audio_latents=st.integers(1, 300)
)


@given(
    st.integers(1, 40),
    st.tuples(st.integers(1, 40), st.sampled_from([2, 4, 6]), st.sampled_from([2, 8, 10])),
    st.integers(1, 50),
    st.lists(st.one_of(pictures, videos, sounds), min_size=1, max_size=12).filter(
        lambda mix: any(each.num_frames for each in mix)
    ),
)
def test_any_mix_is_bitwise_the_reference(
    text_rows: int, grid: tuple[int, int, int], audio: int, references: list[Condition]
) -> None:
    assert_bitwise(torch.ones(text_rows, dtype=torch.int64), grid, audio, references)


@pytest.mark.parametrize("references", SIGNATURES.values(), ids=SIGNATURES)
def test_layout_equals_the_row_by_row_table(references: list[Condition]) -> None:
    small = [  # the table is plain Python
        Condition(
            *(each.kind, 0, "", each.width // 16 // 32 * 32, each.height // 16 // 32 * 32),
            num_frames=min(each.num_frames, 39),
            audio_latents=each.audio_latents // 20,
        )
        if each.width > 512
        else each
        for each in references
    ]
    rows = reference_rows([1, 0, 0, 1], 7, 4, 6, 5, small)
    layout = pack(torch.tensor([1, 0, 0, 1]), (7, 4, 6), 5, small)
    expected = torch.tensor([[row.t, row.h, row.w] for row in rows], dtype=torch.float64)
    torch.testing.assert_close(layout.positions, expected, rtol=0, atol=1e-9)
    assert layout.token_tags.tolist() == [row.tag for row in rows]
    clocks = [TimeClass(value).name.lower() for value in layout.time_classes.tolist()]
    assert clocks == [row.clock for row in rows]


def test_worked_example_of_row_counts() -> None:
    """One 80x48 picture (3424x2048), a 124-frame video with sound, 3 s of sound; 500 tokens."""
    references = [
        Condition(IMAGE, 0, "", 3424, 2048, num_frames=1),
        Condition(VIDEO, 1, "", 1344, 768, num_frames=124, audio_latents=207),
        Condition(AUDIO, 2, "", audio_latents=120),
    ]
    layout = pack(torch.ones(500, dtype=torch.int64), (37, 48, 84), 207, references)
    assert layout.num_condition_video_rows == 44_144
    assert layout.num_condition_audio_rows == 654
    assert layout.num_rows == 83_008


def test_sound_stands_before_its_own_picture_and_they_start_together() -> None:
    layout = pack(torch.ones(3, dtype=torch.int64), (7, 4, 6), 9, [VIDEO_WITH_SOUND])
    _, sound, picture, target_sound, target = layout.spans
    assert (sound.stream, picture.stream) == (Modality.AUDIO, Modality.VIDEO)
    assert (sound.rows, picture.rows) == (400, 32 * 576)
    assert sound.condition
    assert picture.condition
    assert not target_sound.condition
    assert not target.condition
    assert layout.positions[sound.start, 0] == layout.positions[picture.start, 0] == 3.0


@pytest.mark.parametrize(
    ("references", "clock"),
    [
        ([PICTURE], 1.0),
        ([PICTURE, TALL, PICTURE], 3.0),
        ([SOUND], 120.0),
        ([VIDEO_WITH_SOUND], 200.0),  # the sound is longer than 32 latent frames, 178.3
        ([SILENT_VIDEO, PICTURE], latent_span(37) + 1.0),
    ],
)
def test_references_push_the_targets_along_the_clock(
    references: list[Condition], clock: float
) -> None:
    layout = pack(torch.ones(3, dtype=torch.int64), (7, 4, 6), 9, references)
    sound, video = layout.spans[-2:]
    assert layout.positions[sound.start, 0] == layout.positions[video.start, 0] == 3.0 + clock


def test_lone_sound_sits_on_the_targets_width_axis_and_a_videos_on_its_own() -> None:
    wide = Condition(VIDEO, 0, "", 1344, 768, num_frames=22, audio_latents=4)
    layout = pack(torch.ones(1, dtype=torch.int64), (7, 4, 6), 9, [wide, SOUND])
    own, lone = (layout.spans[1], layout.spans[3])
    assert layout.positions[own.start, 2] == width_axis(48, 84)[0]
    assert layout.positions[lone.start, 2] == width_axis(4, 6)[0]
    assert layout.positions[lone.start + 120, 2] == width_axis(4, 6)[-1]


def test_the_two_summation_orders_differ_in_the_last_bit() -> None:
    """Which is why `last_frame_time` and `latent_span` may not share one sum."""
    apart = [t for t in range(1, 108) if latent_span(t) != float(latent_units(t).sum())]
    assert apart
    assert min(apart) >= 16
    assert latent_span(37) == pytest.approx(206 + 2 / 3)


@pytest.mark.parametrize("kind", [KEYFRAME, DRIVING_AUDIO])
def test_other_conditions_are_refused(kind: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"reference: '{kind}' is not legal; legal: im"):
        reference_segments(Condition(kind, 0, "", 32, 32), 0.0, np.zeros(1))
