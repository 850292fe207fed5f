"""Autocast, eager and compiled, and modes of autotune around and in calls that torch.compile sees."""

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from equations import Case, cases
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_operands import Einsum, compiled, tensors, whole

from einops_fast import allow_precision, autotune, contract_expression, fast_einsum
from einops_fast.backends.torch.autocast import torch_path, whole_dtype
from einops_fast.planning.notation import parse
from einops_fast.runtime.precision import allowed
from einops_fast.runtime.tuning import current_mode

# ---- autocast

# By what autocast does: everything is converted, nothing is, and torch's own einsum is called.
AUTOCAST = [
    ("ij,jk->ki", ["float32", "float32"], True),
    ("ij,jk->ki", ["bfloat16", "float32"], True),
    ("ij,jk->ki", ["float16", "float16"], True),
    ("ij,jk->ki", ["float64", "float64"], True),
    ("ij,jk,kl->il", ["float32"] * 3, True),
    ("bi,bij,bj->b", ["float32", "bfloat16", "float32"], True),
    ("bi,b->bi", ["bfloat16", "bfloat16"], True),
    ("bi,b->bi", ["float32", "float32"], True),
    ("bi,b->bi", ["bfloat16", "float32"], False),
    ("ijj,jk->ik", ["float32", "float32"], True),
    ("i,ij,kj->ik", ["float32"] * 3, None),  # what comes of it depends on the order of the pairs
]


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize(
    ("equation", "dtypes", "ours", "dynamic"), [*((*case, False) for case in AUTOCAST), (*AUTOCAST[0], True)]
)
def test_autocast_in_a_compiled_call(equation: str, dtypes: list[str], ours: bool | None, dynamic: bool) -> None:
    def call(*operands: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return fast_einsum(equation, *operands)

    sizes = dict(zip("ijklb", (3, 5, 7, 6, 4), strict=True))
    given = zip(tensors(equation, **sizes), dtypes, strict=True)
    operands = [operand.to(getattr(torch, name)) for operand, name in given]
    got, called = compiled(call, *operands, dynamic=dynamic)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(got, torch.einsum(equation, *operands), rtol=2e-2, atol=2e-2)
    if ours is not None:
        assert called.count("einops_fast.einsum") == ours


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("around", [False, True])
def test_a_training_step_under_autocast_has_the_operator(around: bool) -> None:
    """Forward and backward, and the gradients are those of eager calls."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    def step(einsum: Einsum, x: Any, w: Any, v: Any) -> Any:
        with nullcontext() if around else torch.autocast("cpu", torch.bfloat16):
            hidden = einsum("bi,ij->bj", x, w).relu()
            return einsum("bj,bj,jk->bk", hidden, hidden, v).float().square().mean()

    counts = []

    def count(graph: Any, _: Any) -> Any:
        counts.append(sum("einops_fast.einsum" in str(node.target) for node in graph.graph.nodes))
        return make_boxed_func(graph)

    operands = [each.requires_grad_() for each in tensors("bi,ij,jk", dtype=torch.float32, b=4, i=8, j=6, k=5)]
    call = whole(partial(step, fast_einsum), aot_autograd(fw_compiler=count, bw_compiler=count))
    found = []
    for run in (call, partial(step, fast_einsum), partial(step, torch.einsum)):
        with torch.autocast("cpu", torch.bfloat16) if around else nullcontext():
            loss = run(*operands)
        found.append([loss, *torch.autograd.grad(loss, operands)])
    for others in found[1:]:
        torch.testing.assert_close(found[0], others, rtol=3e-2, atol=3e-2)
    forward, backward = counts
    assert forward == 2
    assert backward >= 4  # the gradients of two matrices, of x and of the hidden units


@pytest.mark.usefixtures("everywhere")
def test_a_dtype_that_is_asked_for_overrules_autocast() -> None:
    operands = tensors("ij,jk", dtype=torch.float32)
    expression = contract_expression("ij,jk->ik", (3, 4), (4, 2), dtype=torch.float64)
    for function in (partial(fast_einsum, "ij,jk->ik", dtype=torch.float64), expression):
        with torch.autocast("cpu", torch.bfloat16):
            got, _ = compiled(lambda a, b, function=function: function(a, b), *operands)
        torch.testing.assert_close(got, operands[0].double() @ operands[1].double())


# ---- modes of autotune


@pytest.mark.usefixtures("everywhere")
def test_a_block_in_a_compiled_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds for the calls in it, and for their gradients; the others have the mode and precision that there are."""
    from einops_fast.backends.torch.einsum import ops as torch_ops

    modes: list[tuple[str, tuple[str, str | None]]] = []
    run = torch_ops.fast_einsum

    def noting(equation: str, *operands: Any, autotune: str | None, precision: str | None, **options: Any) -> Any:
        modes.append((equation, (current_mode(autotune), precision or allowed())))
        return run(equation, *operands, **options)

    monkeypatch.setattr(torch_ops, "fast_einsum", noting)

    @autotune("always")
    def decorated(a: Any, b: Any) -> Any:
        return fast_einsum("ij,jk->ik", a, b)

    def function(a: Any, b: Any) -> Any:
        with autotune("never"), allow_precision("tf32"):
            c = decorated(a, b) + fast_einsum("ij,jl->il", a, b, precision="tf32x3")
        return c + fast_einsum("im,mk->ik", a, b) + fast_einsum("in,nk->ik", a, b, autotune="always", precision="tf32")

    a, b = tensors("ij,jk")
    a.requires_grad_()
    call = whole(function)
    for mode, around in (("auto", nullcontext), ("never", partial(allow_precision, "tf32x3"))):
        modes.clear()
        with autotune(mode):
            with around():
                result = call(a, b)
            result.sum().backward()
        assert dict(modes) == {
            "ij,jk->ik": ("always", "tf32"), "ij,jl->il": ("never", "tf32x3"), "in,nk->ik": ("always", "tf32"),
            "ik,jk->ij": ("always", "tf32"), "il,jl->ij": ("never", "tf32x3"), "ik,nk->in": ("always", "tf32"),
            "im,mk->ik": (mode, None if mode == "auto" else "tf32x3"), "ik,mk->im": (mode, None),
        }  # fmt: skip
    torch.testing.assert_close(function(a, b), 4 * (a @ b))

    def from_then_on(a: Any, b: Any) -> Any:
        c = fast_einsum("ij,jl->il", a, b)
        autotune("never")
        return c + fast_einsum("im,mk->ik", a, b)

    modes.clear()
    usual = current_mode()
    torch.compile(from_then_on, fullgraph=True, backend="aot_eager")(a, b)
    assert dict(modes) == {"ij,jl->il": (usual, None), "im,mk->ik": ("never", None)}
    assert current_mode() == usual


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: fast_einsum("ij,jk->ik", a, b, autotune="sometimes"),
        lambda a, b: autotune("sometimes")(lambda: fast_einsum("ij,jk->ik", a, b))(),
    ],
    ids=["argument", "block"],
)
def test_no_such_mode(function: Callable[..., Any]) -> None:
    with pytest.raises(
        RuntimeError,
        match="the mode of autotune is one of 'auto', 'wait', 'never', 'always' and",
    ):
        compiled(function, *tensors("ij,jk"))


CASTABLE = ["float32", "bfloat16", "float16"]


@st.composite
def problems(draw: st.DrawFn) -> tuple[Case, list[str]]:
    """A contraction without empty axes, and a dtype for each operand."""
    case = draw(cases(max_operands=4, max_size=3).filter(lambda case: all(0 not in shape for shape in case.shapes)))
    alike = draw(st.sampled_from([*CASTABLE, "float64", None]))
    return case, [alike or draw(st.sampled_from(CASTABLE)) for _ in case.shapes]


def operands_of(case: Case, dtypes: list[str]) -> list[Any]:
    return [torch.rand(shape).to(getattr(torch, name)) for shape, name in zip(case.shapes, dtypes, strict=True)]


@pytest.mark.parametrize("reorders", [True, False])
@settings(max_examples=200)
@given(problems())
def test_dtypes_are_those_of_torch(reorders: bool, problem: tuple[Case, list[str]]) -> None:
    case, dtypes = problem
    operands = operands_of(case, dtypes)
    subscripts = parse(case.equation, case.ranks)
    ones = [[size == 1 for size in shape] for shape in case.shapes]
    asked = [*subscripts.inputs], subscripts.output, ones, dtypes
    with torch.backends.opt_einsum.flags(enabled=reorders), torch.autocast("cpu", torch.bfloat16):
        path = torch_path(subscripts.equation, case.shapes)
        found = whole_dtype(*asked, path, "cpu")
        assert whole_dtype(*asked, None, "cpu") in (found, None)
        try:
            wanted = torch.einsum(subscripts.equation, *operands)
        except RuntimeError:
            assert len(set(dtypes)) > 1
            return
    if found is not None:
        assert str(wanted.dtype) == f"torch.{found}"
        converted = torch.einsum(subscripts.equation, *[each.to(wanted.dtype) for each in operands])
        torch.testing.assert_close(converted, wanted, rtol=5e-2, atol=5e-2)


@settings(max_examples=200)
@given(problems())
def test_results_are_those_of_torch(problem: tuple[Case, list[str]]) -> None:
    case, dtypes = problem
    operands = operands_of(case, dtypes)
    equation = parse(case.equation, case.ranks).equation
    with torch.autocast("cpu", torch.bfloat16):
        try:
            wanted = torch.einsum(equation, *operands)
        except RuntimeError:  # two dtypes that it neither converts nor promotes
            return
        torch.testing.assert_close(fast_einsum(case.equation, *operands), wanted, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize(
    ("equation", "dtypes", "wanted"),
    [
        ("ij->ji", ["float32"], "float16"),
        ("ij->i", ["bfloat16"], "float16"),
        ("ij,k->ik", ["bfloat16", "float32"], "float16"),
        ("bi,b->bi", ["float32", "float32"], "float16"),
        ("bi,b->bi", ["float64", "float64"], "float64"),
        ("bi,b->bi", ["float64", "float32"], None),
    ],
)
def test_all_operands_are_converted_on_cuda(equation: str, dtypes: list[str], wanted: str | None) -> None:
    inputs, _, output = equation.partition("->")
    terms = inputs.split(",")
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    try:
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", torch.float16)
        ones = [[False] * len(term) for term in terms]
        assert whole_dtype(terms, output, ones, dtypes, None, "cuda") == wanted
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])


@pytest.mark.gpu
@pytest.mark.parametrize("dtypes", [["float32"], ["bfloat16"], ["bfloat16", "float32"]])
@pytest.mark.parametrize("equation", ["ij->i", "ij->ji", "ij,k->ik", "ij,jk->k", "bi,b->bi", "bi,bij,bj->b"])
def test_results_on_cuda_are_those_of_torch(equation: str, dtypes: list[str]) -> None:
    terms = equation.partition("->")[0].split(",")
    made = [torch.rand([3 + ord(label) % 5 for label in term], device="cuda") for term in terms]
    operands = [each.to(getattr(torch, name)) for each, name in zip(made, itertools.cycle(dtypes), strict=False)]
    with torch.autocast("cuda", torch.bfloat16):
        wanted = torch.einsum(equation, *operands)
        torch.testing.assert_close(fast_einsum(equation, *operands), wanted, rtol=5e-2, atol=5e-2)
