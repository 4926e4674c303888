"""The one rule for text that a client sends: valid Unicode without control characters.

A NUL ends a text early in C libraries, and an escape or a line break forges lines of a log. Only a
prompt may have tabs and line breaks.
"""

import re

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")  # Unicode's category Cc
_CONTROL_IN_PROSE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def is_plain(text: str, *, prose: bool = False) -> bool:
    """Whether a text keeps the rule.

    Args:
        text: of a client; JSON can spell half of a character, a lone surrogate.
        prose: tabs and line breaks are legal.
    """
    if (_CONTROL_IN_PROSE if prose else _CONTROL).search(text):
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
