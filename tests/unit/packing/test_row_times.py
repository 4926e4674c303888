import pytest
import torch
from diffusers import MiniMaxH3Scheduler
from diffusers.modular_pipelines.minimax_h3.before_denoise import MiniMaxH3SetTimestepsStep
from hypothesis import given
from hypothesis import strategies as st
from oracles.diffusers_dit import small_layout

from minimax_h3.core.constants import Modality
from minimax_h3.packing.layout import (
    PackedLayout,
    Segment,
    TimeClass,
    assemble,
    audio_segment,
    keyframe_segment,
    text_segment,
    video_segment,
)
from minimax_h3.packing.row_times import adaln_rows, class_times, row_times, schedule_times
from minimax_h3.schedules.sigma import SigmaSchedule

fp32_times = st.floats(0.0, 1.0, width=32)


def layout_with_everything() -> PackedLayout:
    sound = Segment(
        Modality.AUDIO,
        TimeClass.AUDIO_CONDITION,
        torch.zeros(4, 3, dtype=torch.float64),
        torch.full((4,), 2),
    )
    return assemble(
        [
            text_segment(torch.tensor([1, 0, 1])),
            keyframe_segment("first", 3.0, 7, 4, 4),
            sound,
            audio_segment(3.0, 5, 4, 4),
            video_segment(3.0, 7, 4, 4),
        ]
    )


def reference(layout: PackedLayout, video: float, audio: float) -> tuple[torch.Tensor, ...]:
    return MiniMaxH3SetTimestepsStep.build_row_timesteps(
        layout.video_indices,
        layout.audio_indices,
        layout.num_condition_video_rows,
        layout.num_condition_audio_rows,
        layout.text_indices.numel(),
        video,
        audio,
        max(video, 0.999),
        1.0,
    )


@pytest.mark.parametrize(
    "layout", [small_layout(), small_layout(("last",)), layout_with_everything()]
)
@given(video=fp32_times, audio=fp32_times)
def test_row_times_are_bitwise_the_reference(
    layout: PackedLayout, video: float, audio: float
) -> None:
    times, index = reference(layout, video, audio)
    actual = row_times(layout, class_times(video, audio))
    assert torch.equal(actual.times, times)
    assert torch.equal(actual.index, index)


@pytest.mark.parametrize("anchors", [(), ("first", "last")])
def test_a_whole_schedule_is_bitwise_the_reference(anchors: tuple[str, ...]) -> None:
    layout = small_layout(anchors)
    schedulers = [MiniMaxH3Scheduler(shift=shift) for shift in (12.0, 3.0)]
    for scheduler in schedulers:
        scheduler.set_timesteps(50)
    schedule = schedule_times(
        layout, *(SigmaSchedule.build(50, shift).times for shift in (12.0, 3.0))
    )
    assert schedule.by_step.shape[0] == 49
    for step, (video, audio) in enumerate(zip(*(s.timesteps for s in schedulers), strict=True)):
        times, index = reference(layout, float(video), float(audio))
        per_row = schedule.times[schedule.by_step[step][schedule.rows]]
        assert torch.equal(per_row, times[index])
    assert torch.equal(schedule.times, schedule.times.unique())


def test_a_t2va_schedule_of_49_forwards_has_97_times() -> None:
    times = (SigmaSchedule.build(50, shift).times for shift in (12.0, 3.0))
    assert schedule_times(small_layout(), *times).times.numel() == 97


def test_one_time_at_the_first_step_and_two_afterwards() -> None:
    layout = small_layout()
    assert row_times(layout, class_times(0.0, 0.0)).times.tolist() == [0.0]
    assert row_times(layout, class_times(0.25, 0.5)).times.tolist() == [0.25, 0.5]
    assert row_times(layout_with_everything(), class_times(0.25, 0.5)).times.numel() == 4


def test_text_follows_the_video_clock() -> None:
    layout = small_layout(("first",))
    times = row_times(layout, class_times(0.25, 0.5))
    per_row = times.times[times.index]
    assert per_row[layout.text_indices].tolist() == [0.25] * 5
    assert layout.token_tags[1] == Modality.VIDEO
    assert per_row[layout.audio_indices].unique().tolist() == [0.5]


def test_visual_conditions_stay_at_their_level_until_the_video_is_cleaner() -> None:
    level = torch.tensor(0.999, dtype=torch.float32)
    assert class_times(0.5, 0.5)[TimeClass.VISUAL_CONDITION] == level
    assert class_times(0.9995, 0.5)[TimeClass.VISUAL_CONDITION] > level
    assert class_times(0.5, 0.5)[TimeClass.AUDIO_CONDITION] == 1.0


def test_adaln_row_is_three_times_the_time_plus_the_tag() -> None:
    index = torch.tensor([0, 0, 0, 2, 2, 1])
    tags = torch.tensor([0, 1, 2, 0, 2, -1])
    assert adaln_rows(index, tags).tolist() == [0, 1, 2, 6, 8, 3]
