"""torch.jit.trace and torch.fx.symbolic_trace of einsums: what they record holds for operands of other sizes."""

from typing import Any

import numpy as np
import pytest
import torch
from python_process import run_python

from einops_fast import (
    OperandError,
    attention,
    contract_expression,
    fast_einsum,
    ops,
    patched,
    scaled_dot_product_attention,
)

CASES = [
    ("ijk,jk->i", [(2, 3, 4), (3, 4)]),
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("bind,bjnd->bnij", [(2, 4, 3, 5), (2, 6, 3, 5)]),
    ("abcd,dbe->aec", [(2, 3, 4, 5), (5, 3, 6)]),
    ("i,j->ij", [(3,), (4,)]),
    ("bij,bij->b", [(2, 3, 4), (2, 3, 4)]),
    ("ii->i", [(3, 3)]),
    ("ij->", [(2, 3)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
]

HEADS = torch.ones(2, 2, 5, 4)

pytestmark = pytest.mark.filterwarnings("ignore")


def operands(shapes: list[tuple[int, ...]], longer: int = 0) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(longer)
    return tuple(torch.randn([size + longer for size in shape], generator=generator) for shape in shapes)


def function_of(equation: str, expression: Any, count: int) -> Any:
    """A function of so many tensors that calls three einsums."""

    def call(*given: Any) -> Any:
        options = {"dtype": torch.float64, "order": "C"}
        return fast_einsum(equation, *given), expression(*given), fast_einsum(equation, *given, **options)

    return (lambda a: call(a), lambda a, b: call(a, b), lambda a, b, c: call(a, b, c))[count - 1]


@pytest.mark.parametrize("known", [False, True], ids=["cold", "known"])
@pytest.mark.parametrize(("equation", "shapes"), CASES)
def test_jit_records_no_size(equation: str, shapes: list[tuple[int, ...]], known: bool) -> None:
    given, others = operands(shapes), operands(shapes, 2)
    expected = torch.einsum(equation, *others)
    calls: list[Any] = [lambda *a: fast_einsum(equation, *a), contract_expression(equation, *shapes)]
    with patched("torch"):
        calls.append(lambda *a: torch.einsum(equation, *a))
        for call in calls:
            if known:
                call(*given)
                call(*given)
            traced = torch.jit.trace(lambda *a, call=call: call(*a), given, check_trace=False)
            torch.testing.assert_close(traced(*others), expected, rtol=1e-4, atol=1e-5)


def test_jit_records_the_first_call_of_a_process() -> None:
    script = """
import torch, warnings
from einops_fast import fast_einsum
warnings.simplefilter("ignore")
a, b = torch.randn(2, 3), torch.randn(3, 4)
traced = torch.jit.trace(lambda a, b: fast_einsum("ij,jk->ik", a, b), (a, b))
assert "mkldnn" not in str(traced.graph), traced.graph
"""
    run_python("-c", script)


def test_jit_takes_options() -> None:
    a, b = operands([(2, 3), (3, 4)])
    traced = torch.jit.trace(lambda a, b: fast_einsum("ij,jk->ik", a, b, dtype=torch.float64, order="F"), (a, b))
    found = traced(*operands([(4, 5), (5, 7)]))
    assert (found.dtype, found.stride()) == (torch.float64, (1, 4))


@pytest.mark.parametrize(("equation", "shapes"), CASES)
def test_fx_writes_einsums_down_as_they_are(equation: str, shapes: list[tuple[int, ...]]) -> None:
    given = operands(shapes)
    function = function_of(equation, contract_expression(equation, *shapes), len(shapes))
    graph = torch.fx.symbolic_trace(function)
    assert [node.target for node in graph.graph.nodes if node.op == "call_function"] == [fast_einsum] * 3
    torch.testing.assert_close(graph(*given), function(*given))


def test_fx_writes_down_what_numpy_left_to_its_loops_before() -> None:
    a = np.ones((2, 2))
    for call in (("ij,jk->ik", a, a), ("ij,jk,kl->il", a, a, a), (a, [0, 1])):
        fast_einsum(*call)
    for trace in (lambda a: fast_einsum("ij,jk->ik", a, a), lambda a: fast_einsum("ij,jk,kl->il", a, a, a)):
        graph = torch.fx.symbolic_trace(trace)
        assert [node.target for node in graph.graph.nodes if node.op == "call_function"] == [fast_einsum]


def test_fx_keeps_the_constants_of_an_expression() -> None:
    a, b = operands([(2, 3), (3, 4)])
    expression = contract_expression("ij,jk->ik", (2, 3), b, constants=[1])
    torch.testing.assert_close(torch.fx.symbolic_trace(lambda a: expression(a))(a), a @ b)


@pytest.mark.parametrize("call", [
    ops.softmax, ops.layer_norm, ops.rms_norm, lambda x: ops.linear(x, x), lambda x: attention(x, x, x, layout="bhsd"),
    lambda x: attention(x, layout="bs3hd"), lambda x: attention(HEADS, x, x, layout="bhsd"),
    lambda x: attention(HEADS, HEADS, HEADS, layout="bhsd", mask=("i j", x)),
    lambda x: attention(HEADS, HEADS, HEADS, layout="bhsd", segment_ids=x),
    lambda x: scaled_dot_product_attention(x, x, x), lambda x: scaled_dot_product_attention(HEADS, HEADS, HEADS, x),
    lambda x: ops.qkv_self_attention(x, 2, HEADS), lambda x: ops.linear(HEADS, x), lambda x: ops.softmax(HEADS, mask=x),
    lambda x: ops.linear_cross_entropy(HEADS, HEADS, x), lambda x: ops.cross_entropy(x, HEADS),
])  # fmt: skip
def test_fx_is_told_what_makes_a_node_of_other_functions(call: Any) -> None:
    with pytest.raises(OperandError, match=r"torch\.fx\.wrap"):
        torch.fx.symbolic_trace(lambda x: call(x))


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
def test_jit_records_attention_on_a_gpu(causal: bool) -> None:
    q, other = (torch.randn(batch, 4, length, 32, device="cuda") for batch, length in ((2, 64), (3, 100)))

    def call(q: Any) -> Any:
        return attention(q, q, q, layout="bhsd", causal=causal)

    traced = torch.jit.trace(call, (q,), check_trace=False)
    torch.testing.assert_close(traced(other), call(other), rtol=1e-3, atol=1e-3)


def many_lengths() -> dict[str, tuple[Any, Any]]:
    """Calls that were made with several sizes, so that further sizes need no plan, and operands of them by a number."""
    pattern = "b h i d, b h j d, b h j e -> b h i e"

    def heads(length: int) -> tuple[Any, ...]:
        return operands([(2, 3, length, 8), (2, 3, length + 1, 8), (2, 3, length + 1, 8)])

    def masked(length: int) -> tuple[Any, ...]:
        return *heads(length), torch.arange(length * (length + 1)).reshape(length, -1) % 3 > 0

    calls: dict[str, tuple[Any, Any]] = {
        "attention": (lambda q, k, v: attention(pattern, q, k, v), heads),
        "scaled": (lambda q, k, v: attention(pattern, q, k, v, scale=0.3, causal=True), heads),
        "mask": (lambda q, k, v, m: attention(pattern, q, k, v, mask=m), masked),
        "torch's name": (lambda q, k, v, m: scaled_dot_product_attention(q, k, v, m), masked),
        "einsum": (
            lambda a, b: fast_einsum("ij,jk->ik", a, b), lambda n: operands([(n, n + 1), (n + 1, n + 2)]),
        ),
        "three": (
            lambda a, b, c: fast_einsum("ij,jk,kl->il", a, b, c),
            lambda n: operands([(n, n + 1), (n + 1, n + 2), (n + 2, 3)]),
        ),
    }  # fmt: skip
    for call, given in calls.values():
        for length in (3, 4, 5, 6, 3, 4):
            call(*given(length))
    return calls


@pytest.mark.parametrize("name", ["attention", "scaled", "mask", "torch's name", "einsum", "three"])
def test_jit_records_what_many_lengths_came_with_before(name: str) -> None:
    call, given = many_lengths()[name]
    traced = torch.jit.trace(call, given(9), check_trace=False)
    for length in (9, 12, 2):
        torch.testing.assert_close(traced(*given(length)), call(*given(length)))
