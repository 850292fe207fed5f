"""Einsum on DTensors, against torch.einsum in float64 on one device: forward, backward, placements, collectives."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from ranks import Traffic, agree, placed, randoms, same, spelled
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils.checkpoint import checkpoint

import einops_fast
from einops_fast import OperandError, ShapeError, contract_expression, explain, fast_einsum, ops
from einops_fast.planning.compositions import composition
from einops_fast.runtime.plan_cache import clear_plans

# Equation, shapes, placements of the operands, those of the result, and which collectives there are: on a CPU, torch
# gathers an axis also where it shards another one instead.
ON_FOUR: list[tuple[str, str, str, str, dict[str, int]]] = [
    # One label, sharded in all that have it.
    ("ij,jk->ik", "8 4, 4 6", "0, r", "0", {}),
    ("ij,jk->ik", "8 4, 4 6", "r, 1", "1", {}),
    ("ij,jk->ik", "3 8, 8 6", "1, 0", "p", {}),
    ("ij,jk->ik", "3 8, 8 6", "1, r", "p", {}),
    ("ij,jk->ik", "3 8, 8 6", "r, r", "r", {}),
    ("bij,bjk->bik", "4 3 5, 4 5 2", "0, 0", "0", {}),
    ("bij,bjk->ikb", "4 3 5, 4 5 2", "0, r", "2", {}),
    ("bhid,bhjd->bihj", "2 8 3 5, 2 8 6 5", "1, 1", "2", {}),
    ("ij->ji", "8 3", "0", "1", {}),
    ("ij->i", "3 8", "1", "p", {}),
    ("i,j->ij", "8, 3", "0, r", "0", {}),
    # Uneven and empty shards.
    ("ij,jk->ik", "6 4, 4 6", "0, r", "0", {}),
    ("ij,jk->ik", "3 2, 2 7", "1, 0", "p", {}),
    ("bij,bjk->bik", "1 3 5, 1 5 2", "0, 0", "0", {}),
    ("ij,jk->ik", "0 4, 4 6", "0, r", "0", {}),
    ("ij,jk->ik", "3 0, 0 6", "1, 0", "p", {}),
    # Pending sums stay pending while the step is linear in them.
    ("ij,jk->ik", "3 4, 4 6", "p, r", "p", {}),
    ("ij,jk,kl->il", "3 4, 4 6, 6 2", "p, r, r", "p", {}),
    ("ij,jk->ik", "3 4, 4 6", "p, p", "p", {"all_reduce": 1}),
    ("ij,jk->ik", "8 4, 4 6", "p, 1", "1", {"all_reduce": 1}),
    # Placements that disagree: the fewest bytes are sent.
    ("ij,jk->ik", "64 8, 8 4", "0, 0", "0", {"all_gather_into_tensor": 1}),
    ("ij,jk->ik", "8 64, 64 4", "0, 0", "p", {"all_gather_into_tensor": 1}),
    ("ij,jk->ik", "4 8, 8 64", "0, 1", "1", {"all_gather_into_tensor": 1}),
    ("bij,bjk->bik", "4 8 4, 4 4 3", "0, 1", "0", {"all_gather_into_tensor": 1}),
    # Three and more operands.
    ("ij,jk,kl->il", "3 4, 4 8, 8 2", "r, 1, 0", "p", {}),
    ("bi,bj,bk->bijk", "8 2, 8 3, 8 2", "0, 0, 0", "0", {}),
    # Repeated labels, axes of size 1, ellipses, words, compositions.
    ("iij,jk->ik", "4 4 8, 8 3", "2, 0", "p", {}),
    ("ii->i", "8 8", "0", "r", {"all_gather_into_tensor": 1}),
    ("bii->b", "8 3 3", "0", "0", {}),
    ("bij,bjk->bik", "4 3 5, 1 5 2", "0, r", "0", {}),
    ("bij,bjk->bik", "4 3 5, 1 5 2", "0, 0", "0", {"all_gather_into_tensor": 1}),
    ("...ij,jk->...ik", "4 2 3 5, 5 2", "0, r", "0", {}),
    ("batch head i d, batch head j d -> batch head i j", "2 4 3 5, 2 4 6 5", "1, 1", "1", {}),
    ("b i (h d), b j (h d) -> b h i j", "2 3 12, 2 5 12", "2, 2", "1", {}),
    ("b h i d -> b i (h d)", "2 4 3 2", "1", "2", {}),
    ("b i (h d), o (h d) -> b i o", "2 3 12, 5 12", "2, 1", "p", {}),
    ("b i (h d) -> b h i d", "2 3 8", "2", "1", {}),
    ("b i (g d) -> b g i d", "2 3 12", "2", "r", {"all_gather_into_tensor": 1}),
    ("b h i d -> b i (h d)", "2 3 3 8", "3", "r", {"all_gather_into_tensor": 1}),
]

ON_TWO_BY_TWO: list[tuple[str, str, str, str, dict[str, int]]] = [
    ("bij,bjk->bik", "4 3 6, 4 6 2", "02, 01", "0p", {}),
    ("bij,jk->bik", "4 6 3, 3 8", "0r, r1", "02", {}),
    ("ij,jk->ik", "8 6, 6 8", "00, rr", "00", {}),
    ("ij,jk->ik", "7 6, 6 8", "00, rr", "00", {}),
    ("ij,jk->ik", "3 5, 5 6", "p1, r0", "pp", {}),
    ("ij,jk->ik", "4 6, 6 8", "r1, 10", "1p", {}),
    ("bhid,bhjd->bhij", "2 4 3 5, 2 4 6 5", "01, 01", "01", {}),
    ("ij,jk->ik", "16 4, 4 2", "00, 0r", "00", {"all_gather_into_tensor": 1}),
    ("b i (h d), b j (h d) -> b h i j", "2 3 8, 2 5 8", "02, 02", "01", {}),
]


def check(mesh: Any, equation: str, shapes: str, given: str, *expected: Any) -> None:
    """One call and its gradients: as on one device, and as torch's."""
    inputs = equation.partition("->")[0]
    sizes = {name: size for name, size in (("h", 4), ("g", 3)) if "(" in inputs and name in inputs}
    values = randoms(shapes)
    if composition(equation) is None and "batch" not in equation:
        same(fast_einsum(equation, *values), torch.einsum(equation, *values))
    agree(mesh, lambda *arrays: fast_einsum(equation, *arrays, **sizes), values, given, *expected)


def check_any(mesh: Any, seed: int) -> None:
    """A random equation, random sizes and random placements: the value is right, wherever it is."""
    chance = random.Random(seed)
    sizes = {label: chance.choice((1, 2, 3, 4, 5, 8)) for label in "abcde"}
    terms = ["".join(chance.sample("abcde", chance.randint(1, 3))) for _ in range(chance.randint(1, 3))]
    labels = sorted(set("".join(terms)))
    output = "".join(chance.sample(labels, chance.randint(0, len(labels))))
    shapes = ",".join(" ".join(str(1 if chance.random() < 0.1 else sizes[label]) for label in term) for term in terms)
    given = ",".join(
        "".join(chance.choice([*map(str, range(len(term))), "r", "p"]) for _ in range(mesh.ndim)) for term in terms
    )
    try:
        check(mesh, f"{','.join(terms)}->{output}", shapes, given)
    except Exception as error:
        raise AssertionError(f"{','.join(terms)}->{output} of {shapes} at {given}") from error


def check_options(mesh: Any) -> None:
    """``out``, ``dtype``, ``order``, ``optimize``, ``memory_limit``, lists of labels, subclasses' dtype, autocast."""
    a, b = torch.randn(8, 4), torch.randn(4, 6)
    one, other = placed(a, mesh, "0"), placed(b, mesh, "r")
    for text in ("0", "1", "r"):
        out = placed(torch.zeros(8, 6), mesh, text)
        assert fast_einsum("ij,jk->ik", one, other, out=out) is out
        assert spelled(out) == text
        same(out, a @ b, 1e-5)
    with pytest.raises(OperandError, match="pending sums"):
        fast_einsum("ij,jk->ik", one, other, out=placed(torch.zeros(8, 6), mesh, "p"))
    wide = fast_einsum("ij,jk->ik", one, other, dtype=torch.float64)
    same(wide, a.double() @ b.double())
    same(fast_einsum("ij,jk->ki", one, other, order="C"), (a @ b).T, 1e-5)
    same(fast_einsum(one, [0, 1], other, [1, 2], [0, 2]), a @ b, 1e-5)
    same(fast_einsum("ij,jk,kl->il", one, other, placed(b.T, mesh, "1"), optimize=((0, 2), (0, 1))), a @ b @ b.T, 1e-4)
    limited = fast_einsum("ij,jk->ik", one, other, memory_limit=64)
    assert spelled(limited) == "0"
    same(limited, a @ b, 1e-5)
    expression = contract_expression("ij,jk->ik", (8, 4), (4, 6))
    for _ in range(2):
        same(expression(a, b), a @ b, 1e-5)
        assert spelled(expression(one, other)) == "0"
        same(expression(one, other), a @ b, 1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        assert fast_einsum("ij,jk->ik", one, other).dtype == torch.bfloat16
    with torch.inference_mode():
        same(fast_einsum("ij,jk->ik", one, other), a @ b, 1e-5)


def check_errors(four: Any, square: Any) -> None:
    """One sentence each."""
    a, b = torch.randn(8, 4), torch.randn(4, 6)
    one = placed(a, four, "0")
    with pytest.raises(OperandError, match="operands 0 and 1 are of two frameworks, DTensor and torch; convert one"):
        fast_einsum("ij,jk->ik", one, b)
    with pytest.raises(OperandError, match="operands 0 and 1 are of two frameworks, torch and DTensor; convert one"):
        fast_einsum("ij,jk->ik", a, placed(b, four, "r"))
    with pytest.raises(OperandError, match="operand 0 and operand 1 are DTensors of two meshes"):
        fast_einsum("ij,jk->ik", one, placed(b, square, "rr"))
    with pytest.raises(ShapeError, match="size 6"):
        fast_einsum("ij,jk->ik", one, placed(torch.randn(6, 4), four, "r"))


def check_explanation(square: Any) -> None:
    """Which label is shared, and what is sent."""
    a, b = placed(torch.randn(16, 4, 6), square, "02"), placed(torch.randn(16, 6, 8), square, "rr")
    with Traffic() as traffic:
        found = explain("bij,bjk->bik", a, b)
    assert not traffic.calls
    assert found.sharing == (
        "the 2 ranks of mesh dimension 0 ('data') share 'b'",
        "the 2 ranks of mesh dimension 1 ('model') share 'j', whose sum stays pending",
        "operand 1: (Replicate(), Replicate()) to (Shard(dim=0), Shard(dim=1)), 0 B sent to each rank",
    )
    assert found.plan.sizes == {"b": 8, "i": 4, "j": 3, "k": 8}
    assert "share 'b'" in str(found)
    assert found.to_dict()["sharing"] == list(found.sharing)
    gathered = explain(
        "bij,bjk->bik", placed(torch.randn(16, 4, 6), square, "0r"), placed(torch.randn(16, 6, 8), square, "2r")
    )
    assert gathered.sharing[-1].endswith("768 B sent to each rank")


def check_bytes(mesh: Any) -> None:
    """Never more than torch's einsum where that runs."""
    for equation, shapes, given in [
        ("ij,jk->ik", "8 4, 4 6", "0, r"), ("ij,jk->ik", "8 4, 4 6", "r, 1"), ("ij,jk->ik", "4 8, 8 4", "1, 0"),
        ("ij,jk->ik", "64 8, 8 4", "0, 0"), ("ij,jk->ik", "4 8, 8 64", "0, 1"),
        ("bij,bjk->bik", "4 8 4, 4 4 3", "0, 1"),
    ]:  # fmt: skip
        arrays = [placed(each, mesh, text) for each, text in zip(randoms(shapes), given.split(", "), strict=True)]
        with Traffic() as ours, CommDebugMode() as by_torch:
            fast_einsum(equation, *arrays)
        assert by_torch.get_total_counts() == sum(ours.calls.values())
        with Traffic() as theirs:
            torch.einsum(equation, *arrays)
        assert ours.bytes <= theirs.bytes, (equation, given, ours.calls, theirs.calls)


def check_under_way(mesh: Any) -> None:
    """What is still being gathered is waited for, and is a plain tensor then."""
    a, b = torch.randn(8, 4), torch.randn(4, 6)
    kinds = []

    def contract(equation: str, *parts: Any, **options: Any) -> Any:
        kinds.extend(map(type, parts))
        return torch.einsum(equation, *parts)

    with mock.patch("einops_fast.einsum.fast_einsum", contract):
        gathered = placed(b, mesh, "0").redistribute(placements=[Replicate()], async_op=True)
        assert type(gathered.to_local()) is not torch.Tensor
        clear_plans()
        found = fast_einsum("ij,jk->ik", placed(a, mesh, "0"), gathered)
    clear_plans()
    assert set(kinds) == {torch.Tensor}
    same(found, a @ b, 1e-5)


def check_outside(four: Any) -> None:
    """A process that is none of a mesh's ranks gets empty parts, as from torch's functions."""
    two = DeviceMesh("cpu", [0, 1])
    a, b = torch.randn(4, 6), torch.randn(6, 3)
    one, other = (distribute_tensor(each, two, [Shard(0)]) for each in (a, b))
    found = fast_einsum("ij,jk->ik", one, other), ops.softmax(one), fast_einsum("i (a b) -> a i b", one, a=2)
    inside = torch.distributed.get_rank() < 2
    for each, shape in zip(found, ((4, 3), (4, 6), (2, 4, 3)), strict=True):
        assert each.shape == shape
        assert (each.to_local().numel() > 0) == inside
    alone = DeviceMesh("cpu", [0])  # placements are kept where there is nobody to share with, too
    assert spelled(fast_einsum("ij,jk->ik", placed(a, alone, "0"), placed(b, alone, "r"))) == "0"


def check_gradients(mesh: Any) -> None:
    """Gradients of gradients, and of what a checkpoint computes again; those of what was computed stay pending."""
    a, b = (torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in ((8, 4), (4, 6)))
    one, other = placed(a, mesh, "0"), placed(b, mesh, "r")
    pairs = []
    for x, y in ((a, b), (one, other)):
        (first,) = torch.autograd.grad(fast_einsum("ij,jk->ik", x, y).square().sum(), x, create_graph=True)
        pairs.append((first, *torch.autograd.grad(first.square().sum(), y)))
    for found, wanted in zip(pairs[1], pairs[0], strict=True):
        same(found, wanted.detach())
    checkpoint(partial(fast_einsum, "ij,jk->ik"), one, other, use_reentrant=False).sum().backward()
    same(other.grad, a.detach().sum(0)[:, None].expand(4, 6))
    middle = other * 1.0
    seen: list[str] = []
    middle.register_hook(lambda gradient: seen.append(spelled(gradient)))
    fast_einsum("ij,jk->ik", one, middle).sum().backward()
    assert seen == ["p"]


def check_patch(mesh: Any) -> None:
    """torch.einsum is ours while it is patched, and heads may be sharded, which torch's own refuses."""
    a, b = torch.randn(2, 4, 3, 5), torch.randn(2, 4, 6, 5)
    one, other = placed(a, mesh, "1"), placed(b, mesh, "1")
    with einops_fast.patched("torch"):
        found = torch.einsum("bhid,bhjd->bhij", one, other)
        assert spelled(found) == "1"
        same(found, a @ b.mT, 1e-5)
        # torch's own words, of two versions
        with pytest.raises(RuntimeError, match=r"mixed torch\.Tensor and DTensor|Sharding propagation"):
            torch.einsum("bhid,bhjd->bhij", one, b)


def cases(four: Any, square: Any) -> dict[str, Callable[[], None]]:
    """All, by name."""
    found: dict[str, Callable[[], None]] = {}
    for mesh, table in ((four, ON_FOUR), (square, ON_TWO_BY_TWO)):
        for case in table:
            found[f"einsum {case[0]} of {case[1]} at {case[2]}"] = partial(check, mesh, *case)
    found["options of einsum"] = partial(check_options, four)
    found["errors of einsum"] = partial(check_errors, four, square)
    found["explain"] = partial(check_explanation, square)
    found["bytes of einsum"] = partial(check_bytes, four)
    found["collectives under way"] = partial(check_under_way, four)
    found["a process outside of the mesh"] = partial(check_outside, four)
    found["gradients of gradients"] = partial(check_gradients, four)
    found["patched einsum"] = partial(check_patch, four)
    for seed in range(40):
        found[f"einsum of random operands {seed}"] = partial(check_any, (four, square)[seed % 2], seed)
    return found
