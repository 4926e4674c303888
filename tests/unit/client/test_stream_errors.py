"""Errors of a stream get the status that a unary request would have had."""

import queue

import pytest

from h3_client.errors import H3ClientError
from h3_client.stream import STATUS_OF_KIND, ClipStream, stream_error
from minimax_h3.core import errors


def test_statuses_are_those_of_the_server() -> None:
    theirs = {
        error.kind: error.status
        for error in errors.H3Error.__subclasses__()
        if error.status != "INTERNAL"
    }
    assert theirs == STATUS_OF_KIND


@pytest.mark.parametrize(
    ("text", "status", "kind", "message"),
    [
        ("[capacity] full; retry after 5 s", "UNAVAILABLE", "capacity", "full; retry after 5 s"),
        ("[remote_stage] muxer: gone", "INTERNAL", "remote_stage", "muxer: gone"),
        ("no kind at all", "INTERNAL", "", "no kind at all"),
    ],
)
def test_a_text_is_taken_apart(text: str, status: str, kind: str, message: str) -> None:
    error = stream_error(text)
    assert (error.status, error.kind, error.message) == (status, kind, message)


def test_silence_is_an_error() -> None:
    stream = ClipStream("127.0.0.1:1", "p", silence_s=0.05)
    stream._received = queue.Queue()
    with pytest.raises(H3ClientError, match=r"no event from 127.0.0.1:1 for 0.05 s"):
        next(iter(stream))
