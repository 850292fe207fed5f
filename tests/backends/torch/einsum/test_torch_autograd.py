"""Derivatives of einsum on torch tensors, and what autograd keeps for them.

Tests that could turn out otherwise on a GPU take a ``device``; `pytest -m gpu` runs those on CUDA.
"""

import itertools
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from equations import WAYS, cases, contractions, preferring
from equations import operands as numpy_operands
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.autograd.graph import saved_tensors_hooks
from torch.func import jvp, vmap
from torch.utils.checkpoint import checkpoint
from torch_operands import EQUATIONS, LARGE, LAYOUTS, Einsum, tensors

from einops_fast import contract_expression, fast_einsum, patched
from einops_fast.backends.torch.einsum import autograd
from einops_fast.planning.notation import parse
from einops_fast.planning.plan import make_plan
from einops_fast.planning.target import Numerics, Operand
from einops_fast.runtime.plan_cache import clear_plans

# ---- derivatives


def leaves(equation: str, device: str = "cpu", dtype: Any = torch.float64, **sizes: int) -> list[Any]:
    """Random operands that want gradients."""
    return [each.requires_grad_() for each in tensors(equation, device, dtype, **sizes)]


def gradients(einsum: Einsum, equation: str, operands: Sequence[Any]) -> Sequence[Any]:
    """Of a function of the result that isn't linear, with respect to every operand that wants one."""
    wanting = [operand for operand in operands if operand.requires_grad]
    return torch.autograd.grad(einsum(equation, *operands).sin().sum(), wanting)


def check_gradients(equation: str, operands: Sequence[Any]) -> None:
    """They are those of torch's einsum."""
    torch.testing.assert_close(gradients(fast_einsum, equation, operands), gradients(torch.einsum, equation, operands))


def test_gradient_of_one_tensor_as_two_operands() -> None:
    (x,) = leaves("ij")
    got, wanted = (torch.autograd.grad(of.sin().sum(), x) for of in (fast_einsum("ij,kj->ik", x, x), x @ x.mT))
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("way", WAYS)
@given(data=st.data())
def test_derivatives_of_any_plan(way: str, data: st.DataObject) -> None:
    """Whatever the plan, the layout, and the operands whose gradients are wanted."""
    case = data.draw(st.one_of(contractions(), cases(zero_sizes=False)))
    operands = [torch.from_numpy(array) for array in data.draw(numpy_operands(case.shapes, negative=False))]
    wants = data.draw(st.lists(st.booleans(), min_size=len(operands), max_size=len(operands)).filter(any))
    given = [operand.requires_grad_(each) for operand, each in zip(operands, wants, strict=True)]
    clear_plans()
    with preferring(way):
        got = gradients(fast_einsum, case.equation, given)
    torch.testing.assert_close(got, gradients(torch.einsum, case.letters, given))

    def transformed(einsum: Einsum, equation: str) -> Any:
        def tangent(*operands: Any) -> Any:
            return jvp(lambda *operands: einsum(equation, *operands), operands, operands)

        return vmap(tangent)(*[torch.stack([leaf.detach(), leaf.detach() + 1]) for leaf in given])

    clear_plans()
    with preferring(way):
        got = transformed(fast_einsum, case.equation)
    torch.testing.assert_close(got, transformed(torch.einsum, case.letters))
    clear_plans()


# ---- functional transforms


@pytest.mark.parametrize("equation", EQUATIONS)
def test_vmap(equation: str, device: str) -> None:
    """Over any of the operands, with the mapped axis first or last."""
    operands = tensors(equation, device)
    fast_einsum(equation, *operands)
    for mapped in itertools.product([0, -1, None], repeat=len(operands)):
        if mapped.count(None) == len(mapped):
            continue
        batches = [
            operand if axis is None else torch.stack([operand, operand.sin()], axis)
            for operand, axis in zip(operands, mapped, strict=True)
        ]

        def mapped_call(einsum: Einsum, mapped: Any = mapped, batches: Any = batches) -> Any:
            return vmap(lambda *operands: einsum(equation, *operands), in_dims=mapped)(*batches)

        torch.testing.assert_close(mapped_call(fast_einsum), mapped_call(torch.einsum))


# ---- equations and operands beyond those of every test

MORE = [
    "ij,k->ij",  # the second operand is summed over by itself
    "ijk,il->l",
    "ij,->ij",
    ",->",
    "abij,abjk->abik",
    "ab,bc,cd,da->",
    "ab,bc,cd,de->ea",
    "iij,jjk,k->i",
]


@pytest.mark.parametrize(
    ("equation", "dtype"),
    [*itertools.product([*EQUATIONS, *MORE], ["float64", "complex128"])],
)
def test_derivatives(equation: str, dtype: str, device: str) -> None:
    """First derivatives, forward and backward, and batches of them; second ones in a random direction."""
    everything = dict.fromkeys(("check_forward_ad", "check_batched_grad", "check_batched_forward_grad"), True)
    operands = leaves(equation, device, getattr(torch, dtype), e=2)
    assert gradcheck(partial(fast_einsum, equation), operands, **everything)
    assert gradgradcheck(partial(fast_einsum, equation), operands, fast_mode=True)


@pytest.mark.parametrize("layout", [*LAYOUTS.values(), lambda x: x[:1].expand(x.shape)], ids=[*LAYOUTS, "expanded"])
@pytest.mark.parametrize("equation", ["ij,jk->ik", "bij,bkj->ikb", "bind,bjnd->bnij", "aij,ajk,kl->ail"])
def test_gradients_of_any_layout(equation: str, layout: Any, device: str) -> None:
    """Of an expanded operand, too: each of the elements that share their memory has one of its own."""
    check_gradients(equation, [layout(each).requires_grad_() for each in tensors(equation, device, **LARGE)])


@pytest.mark.parametrize("equation", ["ij,jk->ik", "bij,bjk->ibk", "ij,ij->i", "ij,jk,kl->il"])
def test_gradients_of_empty_tensors(equation: str) -> None:
    for empty in "ijk":
        check_gradients(equation, leaves(equation, **{empty: 0}))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64"])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_gradients_are_as_exact_as_the_native_ones(equation: str, dtype: str, device: str) -> None:
    """The error against float64 is at most twice the native one's, and one rounding of what is summed."""
    operands = leaves(equation, device, getattr(torch, dtype), **LARGE)
    wide = [each.detach().to(torch.promote_types(each.dtype, torch.float64)).requires_grad_() for each in operands]
    sizes = [each.detach().abs().requires_grad_() for each in wide]
    seed = torch.randn_like(torch.einsum(equation, *operands))

    def of(einsum: Einsum, operands: Sequence[Any], seed: Any) -> Sequence[Any]:
        result = einsum(equation, *operands)
        return torch.autograd.grad(result, operands, seed.to(result.dtype))

    for got, native, exact, size, operand in zip(
        of(fast_einsum, operands, seed),
        of(torch.einsum, operands, seed),
        of(torch.einsum, wide, seed),
        of(torch.einsum, sizes, seed.abs()),
        operands,
        strict=True,
    ):
        assert (got.shape, got.dtype, got.device) == (operand.shape, operand.dtype, operand.device)
        rounding = torch.finfo(got.dtype).eps * size.max()
        assert (got - exact).abs().max() <= 2 * (native - exact).abs().max() + rounding


@pytest.mark.parametrize("equation", ["ij,jk->ik", "bij,bjk->ibk", "ij,jk,kl->il"])
def test_gradients_through_a_conversion(equation: str) -> None:
    """They have the dtypes of the operands, not the one to compute in."""
    for dtype in (torch.float64, torch.complex64):
        operands = leaves(equation, dtype=torch.float32)
        result = fast_einsum(equation, *operands, dtype=dtype)
        got = torch.autograd.grad(result.abs().sum(), operands)
        wide = torch.einsum(equation, *[operand.to(dtype) for operand in operands])
        assert result.dtype == dtype
        torch.testing.assert_close(got, torch.autograd.grad(wide.abs().sum(), operands))


# ---- what autograd keeps


def kept(call: Callable[[], Any]) -> tuple[Any, list[Any]]:
    """The result, and the tensors that autograd saves for its gradient."""
    saved: list[Any] = []
    with saved_tensors_hooks(lambda each: saved.append(each) or each, lambda each: each):
        return call(), saved


def place(tensor: Any) -> tuple[Any, ...]:
    """Where the elements of a tensor lie, in whatever order it has its axes."""
    return tensor.data_ptr(), sorted(zip(tensor.shape, tensor.stride(), strict=True))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("equation", ["ij,jk->ki", "bij,bjk->ibk", "bind,bjnd->bnij", "bid,bid->bi", "bij,k->ik"])
def test_nothing_is_kept_but_the_operands(
    equation: str, dtype: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each as it is, and only where the other's gradient is wanted; not by torch, which is left small ones on a GPU."""
    monkeypatch.setattr("einops_fast.backends.torch.einsum.autograd._is_up_to_the_host", lambda plan: False)
    clear_plans()
    for layout in (lambda x: x, *LAYOUTS.values()):
        for wanted in [(True, True), (True, False), (False, True)]:
            operands = [layout(each) for each in tensors(equation, device, getattr(torch, dtype), **LARGE)]
            for operand, wants in zip(operands, wanted, strict=True):
                operand.requires_grad_(wants)
            result, saved = kept(lambda operands=operands: fast_einsum(equation, *operands))
            needed = [operand for operand, wants in zip(operands, wanted[::-1], strict=True) if wants]
            assert sorted(map(place, saved)) == sorted(map(place, needed))
            assert result.requires_grad
    clear_plans()


def test_intermediates_are_kept_once_and_diagonals_as_views() -> None:
    operands = leaves("ab,bc,cd,da->", **LARGE)
    _, saved = kept(lambda: fast_einsum("ab,bc,cd,da->", *operands))
    assert {operand.data_ptr() for operand in operands} < {each.data_ptr() for each in saved}
    assert len(saved) == 6  # two by each of three pairs: four operands and two intermediates
    operands = leaves("iij,jk->ik", **LARGE)
    _, saved = kept(lambda: fast_einsum("iij,jk->ik", *operands))
    memory = {operand.untyped_storage().data_ptr() for operand in operands}
    assert {each.untyped_storage().data_ptr() for each in saved} <= memory


@pytest.mark.parametrize("equation", ["ij,jk->ik", "bij,bjk->ibk", "ij,jk,kl->il"])
def test_a_graph_is_retained_recomputed_and_spoilt_as_any_other(equation: str) -> None:
    operands = leaves(equation)
    result = fast_einsum(equation, *operands).sin().sum()
    first = torch.autograd.grad(result, operands, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(result, operands), first, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(result, operands)
    again = checkpoint(partial(fast_einsum, equation), *operands, use_reentrant=False).sin().sum()
    torch.testing.assert_close(torch.autograd.grad(again, operands), first)
    result = fast_einsum(equation, *operands).sum()
    with torch.no_grad():
        operands[0].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


# ---- where it is recorded as one node, and where not

PAIR = "bij,bjk->ibk"


def nodes(result: Any) -> list[str]:
    """Names of the operations that autograd has recorded, from the result to the leaves."""
    found, ahead = [], [result.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is not None and "AccumulateGrad" not in node.name():
            found.append(node.name())
            ahead += [following for following, _ in node.next_functions]
    return found


def test_every_way_to_call_records_one_node() -> None:
    operands = leaves(PAIR, **LARGE)
    expression = contract_expression(PAIR, *operands)
    assert nodes(fast_einsum(PAIR, *operands)) == ["FastEinsumBackward"]
    assert nodes(expression(*operands)) == nodes(expression(*operands)) == ["FastEinsumBackward"]
    with patched("torch"):
        assert nodes(torch.einsum(PAIR, *operands)) == ["FastEinsumBackward"]


@pytest.mark.parametrize("equation", ["ij,jk->ik", "bij,bjk->ibk", "bij,bij->bi", "ij,jk,kl->il"])
def test_autocast_gradients(equation: str, device: str) -> None:
    operands = leaves(equation, device, torch.float32, **LARGE)

    def of(einsum: Einsum, operands: Sequence[Any], casts: bool = True) -> Sequence[Any]:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=casts):
            result = einsum(equation, *operands)
        weights = torch.linspace(-1, 1, result.numel(), device=device).view(result.shape)
        return torch.autograd.grad((result * weights).sum(), operands)

    exact = of(torch.einsum, [operand.detach().double().requires_grad_() for operand in operands], casts=False)
    ours, theirs = of(fast_einsum, operands), of(torch.einsum, operands)
    for one, other, right in zip(ours, theirs, exact, strict=True):
        assert one.dtype == other.dtype
        # Products of different layouts may be added up in different orders, and what comes between is rounded.
        assert (one - right).norm() <= 1.5 * (other - right).norm()
        assert (other - right).norm() > 1e-4 * right.norm()


def test_tangents_of_gradients() -> None:
    """Forward mode over the backward pass of a call that was recorded before."""
    operands = leaves(PAIR)

    def tangents(einsum: Einsum) -> Any:
        result = einsum(PAIR, *operands)
        with forward_ad.dual_level():
            seed = forward_ad.make_dual(result.detach().cos(), result.detach().sin())
            found = torch.autograd.grad(result, operands, seed)
            return [forward_ad.unpack_dual(each).tangent for each in found]

    torch.testing.assert_close(tangents(fast_einsum), tangents(torch.einsum))


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("dbac,cda->adb", ((1, 3, 5, 3), (3, 1, 5))),  # a product of matrices that writes into the result
        ("bhd,hd->bh", ((600, 16, 64), (16, 64))),  # in blocks
        ("ij,jk,kl->il", ((4, 5), (5, 6), (6, 7))),
    ],
)
def test_a_batch_of_gradients(equation: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    """Gradients of several at a time, which torch makes without a transform, after the same of one."""
    operands = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    result = fast_einsum(equation, *operands)
    seeds = torch.randn(3, *result.shape, dtype=torch.float64)
    for _ in range(2):
        one_by_one = [torch.autograd.grad(result, operands, seed, retain_graph=True) for seed in seeds]
        found = torch.autograd.grad(result, operands, seeds, is_grads_batched=True, retain_graph=True)
        torch.testing.assert_close(found, tuple(map(torch.stack, zip(*one_by_one, strict=True))))


@pytest.mark.parametrize(("at", "order"), [(0, "C"), (1, "K")])
def test_on_a_gpu_a_gradient_lies_as_its_operand(at: int, order: str) -> None:
    """What made the operand, a softmax say, would copy a gradient that lies otherwise."""
    from gpu_plans import TARGET

    operands = [
        Operand((4, 16, 32, 32), (16384, 1024, 32, 1), "float16"),
        Operand((4, 32, 16, 8), (8, 512, 32, 1), "float16"),
    ]
    given = make_plan(parse("bhij,bjhd->bihd", (4, 4)), operands, TARGET, Numerics("float16", "float16"))
    assert autograd._gradient(given, at, "bihd", {}).keywords["order"] == order


def _outcome(einsum: Any, equation: str, *operands: Any) -> Any:
    leaves = [each for each in operands if each.requires_grad]
    try:
        result = einsum(equation, *operands)
        return result, *torch.autograd.grad(result.sum(), leaves)
    except RuntimeError as error:
        if "Inference tensors" not in str(error):
            raise
        return None


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("count", [2, 3])
def test_what_torch_records_is_recorded(seed: int, count: int) -> None:
    chance = random.Random(seed)
    sizes = {label: chance.choice([1, 2, 3]) for label in "abcde"}
    terms = ["".join(chance.sample("abcde", chance.randint(1, 4))) for _ in range(count)]
    every = sorted(set("".join(terms)))
    equation = f"{','.join(terms)}->{''.join(chance.sample(every, chance.randint(0, 3) % len(every)))}"
    shapes = [[sizes[label] for label in term] for term in terms]
    operands = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    at = chance.randrange(count)
    with torch.inference_mode():
        operands[at] = torch.randn(shapes[at], dtype=torch.float64)
    expected = _outcome(torch.einsum, equation, *operands)
    for _ in range(3):
        found = _outcome(fast_einsum, equation, *operands)
        if expected is not None:
            assert found is not None
            torch.testing.assert_close(found, expected)
