import json
import math

import numpy as np
import pytest

from h3_client.errors import H3ClientError
from h3_client.fields import LIST_FIELDS, OPTIONS, TENSOR_FIELDS, encode_request
from minimax_h3.core.contracts import ENSEMBLE, MODELS, REQUEST_INPUTS
from minimax_h3.core.fields import FIELDS
from minimax_h3.core.refusals import shown

WIRE = {"BYTES": "STRING"}  # clients say BYTES where a config says STRING


def test_table_equals_the_contract() -> None:
    ours = {name.upper(): WIRE.get(kind, kind) for name, kind in TENSOR_FIELDS.items()}
    theirs = {spec.name: spec.dtype for spec in REQUEST_INPUTS if spec.name != OPTIONS}
    assert ours == theirs
    lists = {spec.name.lower() for spec in REQUEST_INPUTS if spec.dims == (-1,)}
    assert lists == LIST_FIELDS
    assert all(spec.dims in ((1,), (-1,)) for spec in REQUEST_INPUTS)
    assert OPTIONS in {spec.name for spec in REQUEST_INPUTS}


def test_models_and_outputs_are_those_of_the_contract() -> None:
    from h3_client import client

    assert ENSEMBLE.name == client.ENSEMBLE
    assert {"MP4", "METADATA", "FRAMES", "AUDIO"} == {spec.name for spec in ENSEMBLE.outputs}
    jobs = MODELS[client.JOBS]
    assert [(spec.name, spec.dtype) for spec in jobs.inputs] == [("OP", "STRING")]
    assert [(spec.name, spec.dtype) for spec in jobs.outputs] == [("ANSWER", "STRING")]


def test_every_field_gets_its_type_and_the_rest_goes_into_options() -> None:
    tensors = {
        tensor.name: tensor
        for tensor in encode_request(
            {
                "prompt": "snow \N{SNOWMAN}",
                "width": 64,
                "seed": 2**63 - 1,
                "duration": 5,
                "return_frames": True,
                "video_crf": 20,
                "noise_recipe": "per_stream",
                "height": None,
            }
        )
    }
    assert set(tensors) == {"PROMPT", "WIDTH", "SEED", "DURATION", "RETURN_FRAMES", "OPTIONS"}
    assert tensors["PROMPT"].values[0] == "snow \N{SNOWMAN}".encode()
    assert tensors["WIDTH"].values.dtype == np.int64
    assert tensors["SEED"].values[0] == 2**63 - 1
    assert tensors["DURATION"].values.dtype == np.float32
    assert tensors["RETURN_FRAMES"].values.dtype == np.bool_
    assert all(tensor.values.shape == (1,) for tensor in tensors.values())
    options = json.loads(tensors["OPTIONS"].values[0])
    assert options == {"video_crf": 20, "noise_recipe": "per_stream"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("width", 64.0),
        ("width", "64"),
        ("width", True),
        ("width", 2**63),
        ("seed", 2**63),
        ("frame_indices", -(2**63) - 1),
        ("duration", "5"),
        ("duration", 1e39),
        ("duration", 10**400),
        ("duration", False),
        ("return_frames", 1),
        ("prompt", ["a fox"]),
        ("prompt", b"a fox"),
        ("task", 7),
    ],
)
def test_a_value_that_its_tensor_cannot_carry_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(H3ClientError) as refusal:
        encode_request({name: value})
    assert refusal.value.status == "INVALID_ARGUMENT"
    message = str(refusal.value)
    assert message.startswith(f"{name}: {shown(value)} is not legal; legal: {FIELDS[name].legal}")
    assert len(message) < 300


def test_only_none_means_absent() -> None:
    fields = {"prompt": "", "seed": 0, "duration": 0.0, "return_frames": False, "video_crf": 0}
    tensors = {tensor.name: tensor.values[0] for tensor in encode_request(fields)}
    assert tensors.pop("OPTIONS") == b'{"video_crf": 0}'
    assert tensors == {"PROMPT": b"", "SEED": 0, "DURATION": 0.0, "RETURN_FRAMES": False}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_a_number_means_is_left_to_the_server(value: float) -> None:
    (tensor,) = encode_request({"duration": value})
    np.testing.assert_equal(tensor.values[0], np.float32(value))


@pytest.mark.parametrize("value", [np.int32(64), np.int64(64)])
def test_numpy_numbers_are_numbers(value: object) -> None:
    (tensor,) = encode_request({"width": value})
    assert tensor.values[0] == 64


def test_text_that_utf8_cannot_carry_is_refused_by_name() -> None:
    with pytest.raises(H3ClientError, match=r"prompt: .\\ud800. is not legal; legal: .*Unicode"):
        encode_request({"prompt": "\ud800"})


@pytest.mark.parametrize("name", [name for name, one in FIELDS.items() if one.kind is str])
@pytest.mark.parametrize("character", ["\0", "\x1b", "\x85"])
def test_control_characters_in_a_text_are_refused_by_name(name: str, character: str) -> None:
    with pytest.raises(
        H3ClientError, match=rf"^{name}: 'a\\x.*b' is not legal; legal: "
    ) as refused:
        encode_request({"prompt": "a fox", name: f"a{character}b"})
    assert refused.value.status == "INVALID_ARGUMENT"


def test_a_prompt_may_have_lines() -> None:
    (tensor,) = encode_request({"prompt": "a\n\tb\r\n"})
    assert tensor.values[0] == b"a\n\tb\r\n"


@pytest.mark.parametrize("value", [object(), math.nan])
def test_options_that_are_not_json_are_refused_by_name(value: object) -> None:
    with pytest.raises(H3ClientError, match="video_crf"):
        encode_request({"video_crf": value})
