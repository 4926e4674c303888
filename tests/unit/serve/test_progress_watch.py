"""A busy model is not a hung one."""

import pytest

from minimax_h3.serve.progress_watch import JobView, Patience, busy_models, overdue

PATIENCE = Patience(least_s=60.0, unknown_s=600.0)


def described(**changes: object) -> JobView:
    entry = {
        "job_id": "j",
        "state": "running",
        "stage": "denoiser",
        "awaiting": ["denoiser"],
        "dit": "dit_fl2va",
        "stamp_age_s": 1.0,
        "expected_step_s": 5.0,
    }
    return JobView.of(entry | changes)


def test_models_that_owe_a_word_are_busy() -> None:
    decoding = described(stage="video_decoder", awaiting=["audio_decoder", "video_decoder"], dit="")
    assert busy_models([described(), decoding]) == {
        "denoiser",
        "dit_fl2va",
        "audio_decoder",
        "video_decoder",
    }


@pytest.mark.parametrize(
    ("silent_s", "expected_s", "is_late"),
    [
        (59.0, 0.01, False),  # never before the least
        (61.0, 0.01, True),
        (99.0, 20.0, False),  # five of its own steps
        (101.0, 20.0, True),
        (599.0, None, False),  # the first step has no estimate
        (601.0, None, True),
    ],
)
def test_a_loop_is_judged_by_its_own_steps(
    silent_s: float, expected_s: float | None, is_late: bool
) -> None:
    job = described(stamp_age_s=silent_s, expected_step_s=expected_s)
    assert overdue([job], PATIENCE) == ([job] if is_late else [])


def test_steps_say_nothing_about_a_decoder() -> None:
    decoding = described(stage="video_decoder", dit="", stamp_age_s=500.0)
    assert overdue([decoding], PATIENCE) == []


def test_a_job_that_nobody_owes_a_word_is_not_judged() -> None:
    assert overdue([described(awaiting=[], dit="", stamp_age_s=1e6)], PATIENCE) == []


def test_an_older_jobs_model_without_these_fields() -> None:
    assert JobView.of({"job_id": "j", "stage": "denoiser"}).models == frozenset()
