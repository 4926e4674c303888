"""What lies between products in a training step, against plain formulas, gradients too."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.nn.functional import one_hot, scaled_dot_product_attention

from build_engines.train_tiny import dit_ops
from build_engines.train_tiny.dit_ops import PLAIN, Bounds, compiled_ops
from minimax_h3.ops.rope import RotaryTable, rotary_table, rotate_

BATCH, WIDTH, LOOKUPS, EPS = 2, 8, 5, 1e-5
DTYPE = torch.float64


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=DTYPE, requires_grad=True)


def norm(values: Tensor, weight: Tensor) -> Tensor:
    return values / (values.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * weight


def modulation_arguments(rows: int, parts: int) -> tuple[Tensor, Tensor, Tensor]:
    lookup = torch.randint(LOOKUPS - 1, (BATCH, rows))  # the last row of the table is unused
    return lookup, drawn(BATCH, LOOKUPS, parts * WIDTH), drawn(WIDTH)


def modulated_case(rows: int) -> tuple[tuple[object, ...], list[Tensor]]:
    hidden, (lookup, table, weight) = drawn(BATCH, rows, WIDTH), modulation_arguments(rows, 2)
    shift, scale = (one_hot(lookup, LOOKUPS).to(DTYPE) @ table).chunk(2, -1)
    expected = norm(hidden, weight) * (1 + scale) + shift
    return (hidden, lookup, table, weight, EPS, DTYPE), [expected]


def advanced_case(rows: int) -> tuple[tuple[object, ...], list[Tensor]]:
    hidden, branch = drawn(BATCH, rows, WIDTH), drawn(BATCH, rows, WIDTH)
    lookup, table, weight = modulation_arguments(rows, 3)
    gate, shift, scale = (one_hot(lookup, LOOKUPS).to(DTYPE) @ table).chunk(3, -1)
    stream = hidden + gate * branch
    expected = [stream, norm(stream, weight) * (1 + scale) + shift]
    return (hidden, branch, lookup, table, weight, EPS, DTYPE), expected


def heads_case(rows: int) -> tuple[tuple[object, ...], list[Tensor]]:
    """Three heads of 8 values, of which 6 turn."""
    qkv, query, key = drawn(BATCH, rows, 3 * 3 * 8), drawn(8), drawn(8)
    table = rotary_table(torch.rand(BATCH * rows, 3), 1, 100.0)
    turns = [part.view(BATCH, rows, 1, -1).to(DTYPE) for part in table]
    q, k, v = qkv.view(BATCH, rows, 3, 3, 8).unbind(2)
    served = RotaryTable(*(part.to(DTYPE) for part in table))
    expected = [
        rotate_(norm(each, weight).flatten(0, 1).clone(), served).view(each.shape)
        for each, weight in ((q, query), (k, key))
    ]
    return (qkv, *turns, query, key, EPS), [*expected, v]


def swiglu_case(rows: int) -> tuple[tuple[object, ...], list[Tensor]]:
    inner = drawn(BATCH, rows, 2 * WIDTH)
    gate, value = inner.chunk(2, -1)
    return (inner,), [gate * torch.sigmoid(gate) * value]


CASES = {
    "modulated": modulated_case,
    "advanced": advanced_case,
    "heads": heads_case,
    "swiglu": swiglu_case,
}


@pytest.fixture
def in_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """FP32 inside the functions becomes FP64, so that only rounding of that is left."""
    monkeypatch.setattr(Tensor, "float", lambda values: values)


def outputs(function: Callable[..., object], arguments: tuple[object, ...]) -> list[Tensor]:
    found = function(*arguments)
    return list(found) if isinstance(found, tuple) else [found]


def gradients(found: list[Tensor], arguments: tuple[object, ...]) -> tuple[Tensor, ...]:
    torch.manual_seed(9)
    wanted = [each for each in arguments if isinstance(each, Tensor) and each.requires_grad]
    total = sum((each * torch.randn(each.shape, dtype=each.dtype)).sum() for each in found)
    return torch.autograd.grad(total, wanted)


@pytest.mark.usefixtures("in_double")
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_the_formula(name: str) -> None:
    torch.manual_seed(0)
    arguments, expected = CASES[name](7)
    found = outputs(getattr(dit_ops, name), arguments)
    for ours, plain in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, plain)
    pairs = zip(gradients(found, arguments), gradients(expected, arguments), strict=True)
    for ours, plain in pairs:
        assert plain.any()
        torch.testing.assert_close(ours, plain)


def test_gradient_of_a_lookup() -> None:
    torch.manual_seed(1)
    table, lookup = drawn(BATCH, 3, 4), torch.tensor([[0, 2, 2, 0, 2], [1, 1, 1, 0, 1]])
    first, second = dit_ops.looked_up(table, lookup, 2)
    assert torch.equal(torch.cat((first, second), -1)[1, 3], table[1, 0].float())

    def function(values: Tensor) -> Tensor:
        found: Tensor = dit_ops._LookedUp.apply(values, lookup)
        return found

    assert torch.autograd.gradcheck(function, table)


def single(value: object) -> object:
    """An argument in the precisions that training runs in on a CPU."""
    if value is DTYPE:
        return torch.float32
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return value.detach().float().requires_grad_(value.requires_grad)


# The compiler makes one of torch's own functions in a way that torch calls old.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("name", CASES)
def test_compiled_once_for_any_number_of_rows(name: str) -> None:
    torch.manual_seed(2)
    torch._dynamo.reset()
    compiled = 0

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        nonlocal compiled
        compiled += 1
        return make_boxed_func(graph.forward)

    ops = compiled_ops(aot_autograd(fw_compiler=count))
    for rows in (7, 12, 40, 33):
        arguments = tuple(map(single, CASES[name](rows)[0]))
        found = outputs(getattr(ops, name), arguments)
        expected = outputs(getattr(PLAIN, name), arguments)
        for ours, plain in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, plain)
        pairs = zip(gradients(found, arguments), gradients(expected, arguments), strict=True)
        for ours, plain in pairs:
            torch.testing.assert_close(ours, plain)
    assert compiled == 2, "one graph forward and one backward"


def test_bounds_make_documents_of_fills() -> None:
    """What the flash kernels are given, run document by document, is the masked attention."""
    torch.manual_seed(3)
    held = torch.arange(6) < torch.tensor([[4], [6], [1]])
    bounds = Bounds.of(held)
    assert bounds.ends.tolist() == [0, 4, 6, 12, 12, 13, 18]
    assert bounds.ends.dtype == torch.int32
    q, k, v = torch.randn(3, 3, 6, 2, 4)
    expected = dit_ops.masked(q, k, v, bounds)
    rows = [each.flatten(0, 1).transpose(0, 1) for each in (q, k, v)]
    spans = zip(bounds.ends[:-1].tolist(), bounds.ends[1:].tolist(), strict=True)
    parts = [
        scaled_dot_product_attention(*(each[:, first:end] for each in rows))
        for first, end in spans
        if end > first
    ]
    found = torch.cat(parts, dim=1).transpose(0, 1).view(q.shape)
    torch.testing.assert_close(found[held], expected[held])
