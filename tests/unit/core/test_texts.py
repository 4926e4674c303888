"""Which text is legal, against Unicode's own table, and that every text field keeps to it."""

import unicodedata

import pytest

from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.core.fields import FIELDS
from minimax_h3.core.request import GenerationRequest
from minimax_h3.core.texts import is_plain

TEXT_FIELDS = [name for name, field in FIELDS.items() if field.kind is str]
IN_PROSE = {"\t", "\n", "\r"}


def test_nothing_but_control_characters_and_halves_of_characters_is_refused() -> None:
    for number in [*range(0x3000), *range(0xD700, 0xE100), 0x1F98A]:
        character = chr(number)
        illegal = unicodedata.category(character) in ("Cc", "Cs")
        assert is_plain(f"a{character}b") != illegal, hex(number)
        assert is_plain(f"a{character}b", prose=True) == (not illegal or character in IN_PROSE)


@pytest.mark.parametrize("name", TEXT_FIELDS)
@pytest.mark.parametrize("character", ["\0", "\x1b", "\x7f", "\x85", "\ud800"])
def test_every_text_field_refuses_them_by_name(name: str, character: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"^{name}: 'a\\.*b' is not legal; legal: ."):
        GenerationRequest.from_fields({"prompt": "a fox", name: f"a{character}b"})


@pytest.mark.parametrize("character", sorted(IN_PROSE))
def test_only_a_prompt_has_tabs_and_line_breaks(character: str) -> None:
    prompt = f"a{character}b"
    assert GenerationRequest.from_fields({"prompt": prompt}).prompt == prompt
    with pytest.raises(InvalidRequestError, match=r"^client: .*no control characters"):
        GenerationRequest.from_fields({"prompt": "a fox", "client": prompt})
