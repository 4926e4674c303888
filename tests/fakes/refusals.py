"""What every refusal has to be, and what it may never hold."""

import re

from minimax_h3.core.errors import H3Error

_PYTHON = re.compile(r"object at|<class|_io\.|\bNone\b|\bTrue\b|\bFalse\b|Traceback|0x[0-9a-f]{6}")


def check_refusal(error: H3Error, subject: str, value: str) -> None:
    """Assert that one line names subject and value, given as patterns, and what is legal."""
    text = str(error)
    assert re.match(f"{subject}: ", text), text
    assert re.search(value, text), text
    assert re.search("legal: .", text), text
    assert not _PYTHON.search(text), text
    assert text.isprintable(), text
    assert len(text) < 700, text
