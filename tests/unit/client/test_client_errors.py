import pytest

from h3_client.errors import clean_message


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
