"""Expressions with constants: what is contracted once, and how a change of one is noticed."""

from functools import partial

import numpy as np
import pytest
from attention_arrays import arrays_of, assert_close, random_arrays

from einops_fast import (
    contract_expression,
    fast_einsum,
)
from einops_fast.einsum import plan_arguments
from einops_fast.runtime.constants import cheapest_folding


@pytest.fixture(params=["numpy", "torch", "mxnet"])
def make(request):
    """Makes an array of each framework from NumPy's."""
    return partial(arrays_of, request.param)


FOLDED = [
    ("ij,jk,ik", [(4, 6), (6, 5), (4, 5)], [1, 2]),
    ("ij,jk,kl,lm->im", [(2, 6), (6, 6), (6, 6), (6, 6)], [1, 2, 3]),
    ("ab,bc,cd,de->ae", [(6, 6), (6, 6), (6, 2), (2, 6)], [0, 1, 3]),
    ("ij,jkz->ik", [(4, 6), (6, 5, 7)], [1]),
    ("ij,jkk->ik", [(4, 6), (6, 5, 5)], [1]),
    ("ij,k,k->ij", [(4, 6), (5,), (5,)], [1, 2]),
]


@pytest.mark.parametrize(("equation", "shapes", "constants"), FOLDED, ids=[case[0] for case in FOLDED])
@pytest.mark.parametrize("optimize", ["auto", "greedy", False], ids=str)
def test_what_only_constants_take_part_in_is_contracted_once(equation, shapes, constants, optimize, make, monkeypatch):
    arrays = [make(array) for array in random_arrays(*shapes)]
    expected = fast_einsum(equation, *random_arrays(*shapes))
    given = [array if at in constants else shapes[at] for at, array in enumerate(arrays)]
    expression = contract_expression(equation, *given, constants=constants, optimize=optimize)
    varying = [array for at, array in enumerate(arrays) if at not in constants]
    contracted = []
    monkeypatch.setattr(
        "einops_fast.expression.fast_einsum", lambda *call: contracted.append(call[0]) or fast_einsum(*call)
    )
    for _ in range(3):
        assert_close(expression(*varying), expected)
    # From left to right, only the first path has constants that meet.
    assert len(contracted) == len(set(contracted))
    if optimize == "auto" and "kk" not in equation:  # a diagonal is a view
        assert contracted
    expression.forget_plans()
    assert_close(expression(*varying), expected)


def _folding(equation, arrays, constants, optimize):
    plan = plan_arguments((equation, *arrays), None, "safe", optimize)
    return cheapest_folding(plan, constants, optimize, None)


def test_nothing_is_folded_that_would_take_longer_or_more_room():
    x, y = np.ones((1000, 2)), np.ones((1000, 2))
    # Only their outer product could be kept.
    assert _folding("ai,bi,ia->b", [x, y, np.ones((2, 1000))], [0, 1], "auto") is None
    chain = [np.ones((40, 40))] * 3
    plan = plan_arguments(("ij,jk,kl->il", *chain), None, "safe", "auto")
    assert cheapest_folding(plan, [1, 2], "auto", 1600) is not None
    assert cheapest_folding(plan, [1, 2], "auto", 1599) is None
    assert cheapest_folding(plan, [0, 1, 2], "auto", None) is None


def test_another_storage_of_a_constant_tensor_is_noticed(torch):
    """As modules have when they are moved, converted and back, or when their parameters are set all at once."""
    x, *given = map(torch.from_numpy, random_arrays((2, 6), (6, 6), (6, 6)))
    layers = torch.nn.ParameterList(given).requires_grad_(False)
    expression = contract_expression("ij,jk,kl->il", x.shape, *layers, constants=[1, 2])

    def right():
        torch.testing.assert_close(expression(x), x @ layers[0] @ layers[1])

    right()
    torch.nn.utils.vector_to_parameters(torch.arange(72.0), layers)
    right()
    for number in range(3):
        layers[0].copy_(torch.rand(6, 6) + number)
        right()
        layers.bfloat16().float()
        right()


def test_constants_with_gradients_keep_them(torch):
    x, v, w = map(torch.from_numpy, random_arrays((2, 6), (6, 6), (6, 6)))
    expression = contract_expression("ij,jk,kl->il", x.shape, v, w, constants=[1, 2])
    with torch.inference_mode():
        expression(x)
    x.requires_grad_()
    expression(x).sum().backward()
    torch.testing.assert_close(x.grad, (v @ w).sum(1).expand(2, 6))
    w.requires_grad_()
    for _ in range(2):
        expression(x).sum().backward()
    torch.testing.assert_close(w.grad, 2 * (x @ v).sum(0)[:, None].expand(6, 6).detach())


def test_folded_constants_under_tracers(torch):
    x, v, w = map(torch.from_numpy, random_arrays((2, 6), (6, 6), (6, 6)))
    expression = contract_expression("ij,jk,kl->il", x.shape, v, w, constants=[1, 2])
    batched = torch.vmap(expression)(torch.stack([x, 2 * x]))
    torch.testing.assert_close(batched[1], 2 * (x @ v @ w))
    graph = torch.fx.experimental.proxy_tensor.make_fx(expression)(x)
    torch.testing.assert_close(graph(3 * x), 3 * (x @ v @ w))
    torch.testing.assert_close(expression(x), x @ v @ w)
