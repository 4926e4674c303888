"""The time of every row, the distinct times, and the AdaLN row that a packed row looks up.

Rows at different noise levels share one forward: each follows the clock of its `TimeClass`.
"""

from dataclasses import dataclass

import torch

from minimax_h3.core.constants import AUDIO_CONDITION_TIME, CONDITION_TIME, Modality
from minimax_h3.packing.layout import PackedLayout


@dataclass(frozen=True, eq=False, slots=True)
class RowTimes:
    """Times of one forward.

    Attributes:
        times: fp32 [M], the distinct times in the sequence, rising.
        index: int64 [S], where each row's time stands in `times`.
    """

    times: torch.Tensor
    index: torch.Tensor


@dataclass(frozen=True, eq=False, slots=True)
class ScheduleTimes:
    """Times of all forwards of a request.

    Attributes:
        times: fp32 [M], the distinct times of the whole schedule, rising.
        by_step: int64 [num_forwards, K], where the time of each present class stands in `times`.
        rows: int64 [S], the class of each row, counted 0 .. K - 1 over the present classes. It is
            the same for every step, so only K numbers change from step to step.
    """

    times: torch.Tensor
    by_step: torch.Tensor
    rows: torch.Tensor


def class_times(video_time: float, audio_time: float) -> torch.Tensor:
    """Time of each `TimeClass` at one step, fp32 [4].

    Text and padding follow the video clock. Visual conditions stay at 0.999 until the video itself
    is cleaner than that; reference sound is always clean.

    Source: model sheet 1.6.
    """
    condition = max(video_time, CONDITION_TIME)
    return torch.tensor(
        [video_time, audio_time, condition, AUDIO_CONDITION_TIME], dtype=torch.float32
    )


def row_times(layout: PackedLayout, times_of_classes: torch.Tensor) -> RowTimes:
    """Times of one forward.

    Args:
        layout: one request, or a batch.
        times_of_classes: fp32 [4], see `class_times`; [4 D] for a batch of D documents.
    """
    present, rows = torch.unique(layout.time_classes, sorted=True, return_inverse=True)
    times, index = torch.unique(times_of_classes[present], sorted=True, return_inverse=True)
    return RowTimes(times, index[rows])


def schedule_times(
    layout: PackedLayout, video_times: torch.Tensor, audio_times: torch.Tensor
) -> ScheduleTimes:
    """Times of every forward of one request.

    Args:
        layout: the request.
        video_times: fp32 [num_forwards], `1 - sigma` of the video schedule.
        audio_times: fp32 [num_forwards], the same of the audio schedule.
    """
    present, rows = torch.unique(layout.time_classes, sorted=True, return_inverse=True)
    by_step = torch.stack(
        [
            class_times(video, audio)[present]
            for video, audio in zip(video_times.tolist(), audio_times.tolist(), strict=True)
        ]
    )
    times, index = torch.unique(by_step, sorted=True, return_inverse=True)
    return ScheduleTimes(times, index, rows)


def adaln_rows(time_index: torch.Tensor, token_tags: torch.Tensor) -> torch.Tensor:
    """Row of the AdaLN table for each packed row: three rows per time, one per modality tag.

    Args:
        time_index: int64 [S].
        token_tags: int64 [S]; padding (-1) looks up the video row.

    Returns:
        int64 [S], `3 * time_index + tag`.

    Source: model sheet 1.3, step 5.
    """
    return len(Modality) * time_index + token_tags.clamp(min=0)
