"""The operator that torch.compile calls: values, gradients, batches, and what it refuses.

Tests that could turn out otherwise on a GPU take a ``device``; `pytest -m gpu` runs those on CUDA.
"""

import warnings
from ast import literal_eval
from functools import partial
from typing import Any

import pytest
import torch
from python_process import run_python
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch_operands import EQUATIONS, tensors, terms_of

from einops_fast import SubscriptsError

LABELS_ONCE = [each for each in EQUATIONS if all(len(set(term)) == len(term) for term in terms_of(each))]


def operator(equation: str, *operands: Any) -> Any:
    from einops_fast.backends.torch.einsum.ops import einsum

    return einsum(list(operands), equation, "auto", None, None)


@pytest.mark.parametrize("equation", LABELS_ONCE)
def test_operator(equation: str, device: str) -> None:
    """Registered as torch wants it; its result is new and contiguous."""
    from einops_fast.backends.torch.einsum.ops import einsum

    operands = [operand.requires_grad_() for operand in tensors(equation, device)]
    torch.library.opcheck(einsum, (operands, equation, "auto", None, None))
    got = operator(equation, *operands)
    torch.testing.assert_close(got, torch.einsum(equation, *operands))
    assert got.is_contiguous()
    assert got.untyped_storage().data_ptr() not in {each.untyped_storage().data_ptr() for each in operands}


@pytest.mark.parametrize(
    ("equation", "dtype"),
    [
        *((equation, "float64") for equation in (*LABELS_ONCE, "ijk,il->l", "ij,->ij")),
        *((equation, "complex128") for equation in ("ij->ji", "ij,ij->", "bij,bjk->ibk", "ij,jk,kl->il")),
    ],
)
def test_gradients_of_the_operator(equation: str, dtype: str) -> None:
    operands = [operand.requires_grad_() for operand in tensors(equation, dtype=getattr(torch, dtype))]
    assert gradcheck(partial(operator, equation), operands)
    assert gradgradcheck(partial(operator, equation), operands, fast_mode=True)


def test_operator_broadcasts() -> None:
    for at, axis in [(0, 0), (0, 2), (1, 0), (1, 1)]:
        operands = tensors("bij,bjk->ibk")
        operands[at] = operands[at].narrow(axis, 0, 1).clone()
        operands = [operand.requires_grad_() for operand in operands]
        torch.testing.assert_close(operator("bij,bjk->ibk", *operands), torch.einsum("bij,bjk->ibk", *operands))
        assert gradcheck(partial(operator, "bij,bjk->ibk"), operands)


def test_operator_takes_a_path() -> None:
    from einops_fast.backends.torch.einsum.ops import einsum

    operands = tensors("ij,jk,kl->il")
    for optimize in ("greedy", "False", "((1, 2), (0, 1))", "['einsum_path', (0, 1), (0, 1)]"):
        got = einsum(operands, "ij,jk,kl->il", optimize, None, None)
        torch.testing.assert_close(got, torch.einsum("ij,jk,kl->il", *operands))


def test_operator_refuses_diagonals() -> None:
    a = tensors("ij", i=3, j=3)[0].requires_grad_()
    with pytest.raises(SubscriptsError, match="take the diagonal first"):
        operator("ii,ij->j", a.to("meta"), a.to("meta"))
    with pytest.raises(SubscriptsError, match="take the diagonal first"):
        operator("ii,ij->j", a, a).sum().backward()


@pytest.mark.parametrize(
    ("equation", "in_dims"),
    [
        ("ij,jk->ik", (0, None)),
        ("ij,jk->ik", (1, 2)),
        ("bij,bjk->ibk", (None, 3)),
        ("ij,jk,kl->il", (None, 1, 0)),
        ("i->", (1,)),
        ("ij->ji", (1,)),
        (",ij->ij", (0, None)),
    ],
)
def test_vmap_of_the_operator(equation: str, in_dims: tuple[int | None, ...]) -> None:
    """Of some operands or all, along any axis, and of calls that are batches already; their gradients, too."""
    single = tensors(equation)
    batches = [
        each if at is None else torch.stack([each, each.sin(), each.cos()], at)
        for each, at in zip(single, in_dims, strict=True)
    ]
    outer = tuple([0 if at == len(single) - 1 else None for at in range(len(single))])
    leaves = [*batches[:-1], torch.stack([batches[-1], batches[-1].exp()])]
    leaves = [each.requires_grad_() for each in leaves]
    found = []
    for einsum in (operator, torch.einsum):
        mapped = vmap(partial(einsum, equation), in_dims)
        twice = vmap(mapped, outer)(*leaves)
        found.append([mapped(*batches), twice, *torch.autograd.grad(twice.sin().sum(), leaves)])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("equation", ["ij,jk->ik", "bi,bij,bj->b", "ij->j"])
def test_a_batch_of_gradients_of_the_operator(equation: str) -> None:
    operands = [operand.requires_grad_() for operand in tensors(equation)]
    result = operator(equation, *operands)
    seeds = torch.stack([result.detach().sin(), result.detach().cos()])
    one_by_one = [torch.autograd.grad(result, operands, seed, retain_graph=True) for seed in seeds]
    found = torch.autograd.grad(result, operands, seeds, is_grads_batched=True)
    torch.testing.assert_close(found, tuple(map(torch.stack, zip(*one_by_one, strict=True))))


def test_operator_is_registered_when_it_is_needed() -> None:
    script = """
import sys, torch, einops_fast
einops_fast.fast_einsum("ij,jk->ik", torch.ones(2, 2, requires_grad=True), torch.ones(2, 2)).sum().backward()
assert "einops_fast.backends.torch.einsum.ops" not in sys.modules
"""
    run_python("-c", script)


class Seen(TorchDispatchMode):
    """Writes down what torch is asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.called.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("gradients", [False, True])
def test_who_looks_at_the_operators_of_our_kernels(gradients: bool) -> None:
    """Without gradients they run at once, unless a mode or a transform wants to see them."""
    from einops_fast.backends.torch.ops.linear_cross_entropy import linear_cross_entropy_in_one

    operator = linear_cross_entropy_in_one.traced
    x, matrix = (torch.randn(size, 4, dtype=torch.float64, requires_grad=gradients) for size in (8, 10))
    target = torch.arange(8)

    def loss(x: Any) -> Any:
        return operator(x, matrix, None, target, None, -100, 0.0, 0.0, "mean", 0, gradients, gradients, False)[0]

    def plain(x: Any) -> Any:
        return torch.nn.functional.cross_entropy(x @ matrix.T, target)

    torch.testing.assert_close(loss(x), plain(x))
    assert loss(x).requires_grad == gradients
    with Seen() as mode:
        loss(x)
    assert mode.called[0] == "einops_fast.linear_cross_entropy.default"
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        assert isinstance(loss(fake.from_tensor(x)), FakeTensor)
    with torch.inference_mode():
        torch.testing.assert_close(loss(x), plain(x).detach())
    if gradients:
        torch.testing.assert_close(*[torch.autograd.grad(function(x), [x, matrix]) for function in (loss, plain)])
        with pytest.raises(RuntimeError, match="setup_context"):
            torch.func.grad(loss)(x)
    else:
        rows = torch.stack([x, x + 1])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.testing.assert_close(vmap(loss)(rows), vmap(plain)(rows))


_ASKED = """
import torch
from einops_fast import nn, ops
from einops_fast.backends.torch.ops.norm import norm_by_kernel
x = torch.ones(2, 8, requires_grad=True)
{}
known = torch._C._dispatch_get_all_op_names()
print([name for name in ("attention_forward", "linear", "norm") if f"einops_fast::{{name}}" in known])
"""


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("ops.layer_norm(x).sum().backward()", []),
        ("torch.compile(lambda x: x if norm_by_kernel.traced else -x, backend='eager', fullgraph=True)(x)", ["norm"]),
        ("nn.register_operators()", ["attention_forward", "linear", "norm"]),
    ],
)
def test_operators_are_registered_when_traced_or_asked_for(statement: str, expected: list[str]) -> None:
    """To register them takes many times as long as a first call."""
    found = run_python("-c", _ASKED.format(statement)).stdout
    assert literal_eval(found) == expected
