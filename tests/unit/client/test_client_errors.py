import pytest

from h3_client.errors import clean_message, server_error


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("in ensemble 'minimax_h3', fps: 30 is not legal", "fps: 30 is not legal"),
        ("in ensemble 'a', in ensemble 'b', full", "full"),
        ("the words in ensemble 'a', stay inside", "the words in ensemble 'a', stay inside"),
        (
            "in ensemble 'minimax_h3', Failed to process the request(s) for model 'work_0_0', "
            "message: ValueError: boom\n\nAt:\n  /models/work/1/model.py(17): one\n  x(2): y\n",
            "boom",
        ),
        ("Stub process 'm_0_0' is not healthy.", "Stub process 'm_0_0' is not healthy."),
    ],
)
def test_wrapping_comes_off_and_nothing_else(raw: str, clean: str) -> None:
    assert clean_message(raw) == clean


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ("NOT_FOUND", "Request for unknown model: 'minimax_h3' has no available versions"),
        ("INTERNAL", "in ensemble 'minimax_h3', Stub process 'muxer_0_0' is not healthy."),
        ("INTERNAL", "Failed for execute the inference request. Model 'jobs' is not ready."),
    ],
)
def test_a_model_that_is_away_for_a_moment_is_worth_another_try(status: str, message: str) -> None:
    error = server_error(status, message)
    assert error.status == "UNAVAILABLE"
    assert error.message.endswith("; retry after 5 s")


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ("NOT_FOUND", "Request for unknown model: 'minimax_h4' is not found"),
        ("NOT_FOUND", "JOB: no result of 'x' is kept"),
        ("INVALID_ARGUMENT", "prompt: a model that is not healthy"),
        ("INTERNAL", "boom"),
    ],
)
def test_other_errors_keep_their_status(status: str, message: str) -> None:
    assert server_error(status, message).status == status
