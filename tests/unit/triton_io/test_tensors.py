"""Triton tensors against `TensorSpec`: what passes, what is refused by name, what stays unread."""

import numpy as np
import pytest
from fakes import pb_utils

from minimax_h3.core.contracts import FP32, INT32, STRING, ModelSpec, TensorSpec
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.triton_io.tensors import NUMPY_TYPES, read_inputs, to_triton, write_outputs

SPEC = ModelSpec(
    "example",
    inputs=(
        TensorSpec("TEXT", STRING, (1,), "a text"),
        TensorSpec("ROWS", FP32, (1, -1, 4), "rows", opaque=True),
        TensorSpec("COUNT", INT32, (1,), "a count", optional=True),
    ),
    outputs=(TensorSpec("SUM", FP32, (-1, 2), "sums"),),
)
TEXT = pb_utils.Tensor("TEXT", np.array([b"a\x00b"], dtype=object))
ROWS = pb_utils.Tensor("ROWS", np.zeros((1, 0, 4), np.float32))


def read(*tensors: pb_utils.Tensor, spec: ModelSpec = SPEC) -> dict:
    return read_inputs(pb_utils.InferenceRequest(inputs=tensors), spec)


def test_strings_arrive_as_bytes_and_absent_optional_inputs_are_left_out() -> None:
    tensors = read(TEXT, ROWS)
    assert set(tensors) == {"TEXT", "ROWS"}
    assert tensors["TEXT"].dtype == object
    assert tensors["TEXT"][0] == b"a\x00b"


def test_optional_input_arrives_when_sent() -> None:
    count = pb_utils.Tensor("COUNT", np.array([7], np.int32))
    assert read(TEXT, ROWS, count)["COUNT"].tolist() == [7]


def test_opaque_inputs_are_not_read_and_travel_under_another_name() -> None:
    rows = pb_utils.Tensor("ROWS", np.arange(8, dtype=np.float32).reshape(1, 2, 4))
    opaque = read(TEXT, rows)["ROWS"]
    assert to_triton("ROWS", opaque) is rows
    renamed = to_triton("OTHER", opaque)
    assert renamed.name() == "OTHER"
    assert rows.reads == 0
    np.testing.assert_array_equal(renamed.as_numpy(), rows.as_numpy())


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ((ROWS,), "TEXT: missing; example requires it"),
        (
            (TEXT, ROWS, pb_utils.Tensor("COUNT", np.array([1, 2], np.int32))),
            "COUNT: shape [2] is not legal; legal: INT32 [1]",
        ),
        (
            (TEXT, ROWS, pb_utils.Tensor("COUNT", np.array([1.5], np.float32))),
            "COUNT: type float32 is not legal; legal: INT32 [1]",
        ),
    ],
)
def test_wrong_inputs_are_refused_by_name(tensors: tuple, message: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        read(*tensors)
    assert str(refusal.value) == message


def test_a_batched_model_sees_the_batch_dimension() -> None:
    spec = ModelSpec("b", (TensorSpec("ROWS", FP32, (-1, 4), "rows"),), (), max_batch_size=8)
    assert read(ROWS, spec=spec)["ROWS"].shape == (1, 0, 4)
    flat = pb_utils.Tensor("ROWS", np.zeros((3, 4), np.float32))
    with pytest.raises(InvalidRequestError, match=r"ROWS: shape \[3, 4\].*\[1, any, 4\]"):
        read(flat, spec=spec)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({}, "missing outputs ['SUM']"),
        (
            {"SUM": np.zeros((1, 2), np.float32), "MORE": np.zeros(1, np.float32)},
            "undeclared outputs ['MORE']",
        ),
        ({"SUM": np.zeros((1, 3), np.float32)}, "output SUM: shape [1, 3] is not legal"),
        ({"SUM": np.zeros((1, 2))}, "output SUM: type float64 is not legal"),
    ],
)
def test_a_stage_that_breaks_its_contract_is_named(answer: dict, message: str) -> None:
    with pytest.raises(TypeError) as fault:
        write_outputs(answer, SPEC)
    assert message in str(fault.value)
    assert "example" in str(fault.value)


def test_a_batched_stage_may_leave_outputs_out() -> None:
    spec = ModelSpec("b", (), SPEC.outputs, max_batch_size=8)
    assert write_outputs({}, spec) == []


def test_strided_arrays_are_sent_whole() -> None:
    array = np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::3]
    (tensor,) = write_outputs({"SUM": array}, SPEC)
    np.testing.assert_array_equal(tensor.as_numpy(), [[0, 3], [6, 9]])


def test_every_type_of_the_contract_has_a_numpy_type() -> None:
    assert {np.dtype(kind) for kind in NUMPY_TYPES.values()} == set(pb_utils.TYPES)
