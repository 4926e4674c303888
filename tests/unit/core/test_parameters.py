"""Which request parameters are taken, and how any other one is refused."""

import pytest

from minimax_h3.core import contracts
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.core.fields import FIELDS
from minimax_h3.core.parameters import BETWEEN_MODELS, PARAMETERS, check_parameters

TRITONS = ("id", "sequence_id", "sequence_start", "sequence_end", "timeout", "binary_data_output")


def refusal(name: str, value: object = 1, *, trusted: bool = False) -> str:
    with pytest.raises(InvalidRequestError) as refused:
        check_parameters({"x-trace": "a", name: value}, trusted=trusted)
    return str(refused.value)


def test_what_triton_its_clients_and_a_gateway_send_is_taken() -> None:
    given = dict.fromkeys(TRITONS, 1) | {"x-request-id": "a", "X-User": "b", "h3_probe": True}
    check_parameters(given, trusted=False)
    check_parameters({}, trusted=False)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("NUM_FRAME", "nearest: the field num_frames, the tensor NUM_FRAMES; "),
        ("numFrames", "nearest: the field num_frames, the tensor NUM_FRAMES; "),
        ("guidance", "nearest: guidance_scale; "),
        ("videocrf", "nearest: the field video_crf, a key of OPTIONS; "),
        ("priorities", "nearest: the field priority, a key of OPTIONS; "),
        ("timeouts", "nearest: timeout; "),
        ("xyzzy", "which is not known; legal: id, "),
    ],
)
def test_an_unknown_one_is_named_with_its_value_and_the_legal_ones(name: str, told: str) -> None:
    message = refusal(name, "7")
    assert message.startswith(f"{name}: sent as a request parameter, '7', which is not known; ")
    assert told in message
    assert f"legal: {', '.join(PARAMETERS)}" in message


@pytest.mark.parametrize("name", [*FIELDS, "SEED"])
def test_a_field_is_told_its_place(name: str) -> None:
    tensors = {spec.name for spec in contracts.REQUEST_INPUTS}
    upper = name.upper()
    place = f"the tensor {upper}" if upper in tensors else "a key of OPTIONS"
    assert refusal(name, 5) == (
        f"{name}: sent as a request parameter, 5, which no field is; legal: {place}"
    )


@pytest.mark.parametrize("name", ["guidance_scale", "GUIDANCE_SCALE", "negative_prompt"])
def test_one_that_this_model_has_no_use_for(name: str) -> None:
    assert refusal(name, 7.5) == (
        f"{name}: sent as a request parameter, 7.5, which has no effect; legal: absent; the model "
        "is guidance-distilled"
    )


def test_those_between_models_need_the_token_and_no_value_is_repeated() -> None:
    check_parameters(dict.fromkeys(BETWEEN_MODELS, "a"), trusted=True)
    for name in BETWEEN_MODELS:
        assert refusal(name, "secret") == f"{name}: not of this server; legal: absent"
    assert refusal("seed", trusted=True).startswith("seed: sent as")  # trust is no free pass


def test_every_name_that_the_code_uses_is_in_the_table() -> None:
    used = {value for name, value in vars(contracts).items() if name.endswith("_PARAMETER")}
    assert used <= BETWEEN_MODELS | PARAMETERS.keys()


def test_a_hostile_name_is_cut_and_stays_on_one_line() -> None:
    message = refusal("a\n" * 100_000, "v" * 100_000)
    assert len(message) < 700
    assert "\n" not in message
