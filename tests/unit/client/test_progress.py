import io

import pytest

from h3_client.progress import DONE, BarView, JobProgress, LineView, NoView, progress_view

RUNNING = {
    "state": "running",
    "stage": "denoiser",
    "step": 10,
    "num_steps": 49,
    "clip": 1,
    "num_clips": 3,
    "position": 0,
}


def test_forwards_are_counted_over_all_clips() -> None:
    progress = JobProgress.of(RUNNING)
    assert (progress.done, progress.total) == (59, 147)
    assert progress.words == "denoiser"


def test_other_stages_have_no_count() -> None:
    progress = JobProgress.of(RUNNING | {"stage": "muxer", "step": 0, "num_steps": 0})
    assert (progress.done, progress.total) == (0, 0)


def test_a_waiting_job_shows_its_position() -> None:
    progress = JobProgress.of(RUNNING | {"state": "waiting", "position": 2})
    assert progress.words == "waiting for a turn, position 2"


@pytest.mark.parametrize("answer", [{"unknown": True}, {}])
def test_a_job_that_jobs_does_not_know_shows_nothing(answer: dict[str, object]) -> None:
    assert JobProgress.of(answer) is None


def test_lines_come_per_stage_and_per_ten_percent() -> None:
    stream = io.StringIO()
    view = LineView(stream)
    view.show(JobProgress.of(RUNNING | {"state": "waiting", "stage": "denoiser", "position": 1}))
    for step in range(49):
        view.show(JobProgress.of(RUNNING | {"step": step, "clip": 0, "num_clips": 1}))
    view.show(JobProgress.of(RUNNING | {"stage": "muxer"}))
    view.show(DONE)
    view.close()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "waiting for a turn, position 1"
    assert lines[1:-2] == [f"denoiser {percent} % of 49 forwards" for percent in range(0, 100, 10)]
    assert lines[-2:] == ["muxer", "done"]


def test_the_bar_counts_forwards_and_ends_full() -> None:
    stream = io.StringIO()
    view = BarView(stream)
    view.show(JobProgress.of(RUNNING))
    assert "59/147" in stream.getvalue()
    view.show(JobProgress.of(RUNNING | {"stage": "video_decoder"}))
    view.show(DONE)
    view.close()
    last = stream.getvalue().replace("\n", "\r").split("\r")
    assert any("done" in part and "147/147" in part for part in last)


def test_the_view_suits_the_stream() -> None:
    assert isinstance(progress_view(io.StringIO(), quiet=False), LineView)
    assert isinstance(progress_view(io.StringIO(), quiet=True), NoView)
