"""Every error has one spelling of its status, gRPC's."""

import grpc

from minimax_h3.core.errors import H3Error


def test_statuses_are_words_of_grpc() -> None:
    words = {code.name for code in grpc.StatusCode}
    assert {kind.status for kind in (H3Error, *H3Error.__subclasses__())} <= words
