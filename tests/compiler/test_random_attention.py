"""Attention in drawn spellings, some of them disturbed: values and gradients are right, whether or not it is fused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch: Any = pytest.importorskip("torch")

import einops_fast  # noqa: E402
from einops_fast import fusions  # noqa: E402

SIZES = {"b": 2, "h": 3, "i": 5, "j": 4, "d": 6, "e": 7}

Step = Callable[[Any], Any]


def orders(labels: str) -> st.SearchStrategy[str]:
    return st.permutations(labels).map("".join)


def permuted(x: Any, own: str, wanted: str) -> Any:
    return x.permute([own.index(label) for label in wanted])


@st.composite
def products(draw: Any, left: str, right: str, output: str) -> Callable[[Any, Any], Any]:
    """A contraction of two tensors of these axes, by one of torch's functions."""
    shared = [label for label in left if label in right and label not in output]
    batch = [label for label in output if label in left and label in right]
    rows = [label for label in output if label not in right]
    columns = [label for label in output if label not in left]
    one, two = "".join([*batch, *rows, *shared]), "".join([*batch, *shared, *columns])
    made = "".join([*batch, *rows, *columns])
    kind = draw(st.sampled_from(["einsum", "matmul", "bmm", "swapped", "sum"]))
    if kind == "einsum":
        return lambda x, y: torch.einsum(f"{left},{right}->{output}", x, y)
    if kind == "swapped":
        return lambda x, y: torch.einsum(f"{right},{left}->{output}", y, x)
    if kind == "sum":
        full = output + shared[0]

        def with_axes(x: Any, own: str) -> Any:
            x = permuted(x, own, "".join([label for label in full if label in own]))
            for at, label in enumerate(full):
                x = x if label in own else x.unsqueeze(at)
            return x

        return lambda x, y: (with_axes(x, left) * with_axes(y, right)).sum(-1)

    def product(x: Any, y: Any) -> Any:
        x, y = permuted(x, left, one), permuted(y, right, two)
        if kind == "matmul":
            found = x @ y
        else:
            lead = x.shape[: len(batch)]
            found = torch.bmm(x.flatten(0, len(batch) - 1), y.flatten(0, len(batch) - 1)).unflatten(0, lead)
        return permuted(found, made, output)

    return product


@st.composite
def changes(draw: Any, scores: str) -> tuple[Step, bool]:
    """What is done to scores of these axes before the softmax, and whether attention can do it."""
    kind = draw(
        st.sampled_from(["scale", "divide", "mask", "where", "bias", "cast", "view", "clamp", "part", "nothing"])
    )
    some = "".join(draw(st.sets(st.sampled_from(scores))))
    shape = [SIZES[label] if label in some else 1 for label in scores]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    mask = torch.rand(shape, generator=generator) < 0.7
    bias = torch.randn(shape, generator=generator, dtype=torch.float64)
    last = scores.index("j")
    mask = mask | (torch.arange(shape[last]) == 0).view([-1 if at == last else 1 for at in range(len(scores))])
    number = draw(st.sampled_from([0.25, 2.0]))
    steps: dict[str, Step] = {
        "scale": lambda x: x * number,
        "divide": lambda x: x / 3,
        "mask": lambda x: x.masked_fill(~mask, float("-inf")),
        "where": lambda x: torch.where(mask, x, -1e9),
        "bias": lambda x: bias.to(x.dtype) + x,
        "cast": lambda x: x.double().to(x.dtype),
        "view": lambda x: x.flatten(0, 1).unflatten(0, x.shape[:2]),
        "clamp": lambda x: x.clamp(min=-2),
        "part": lambda x: x.narrow(last, 0, 3),
        "nothing": lambda x: x,
    }
    return steps[kind], kind not in ("clamp", "part")


@settings(max_examples=25)
@given(data=st.data())
def test_a_drawn_program_has_its_own_values(data: st.DataObject) -> None:
    axes = {name: data.draw(orders(labels)) for name, labels in (("q", "bhid"), ("k", "bhjd"), ("v", "bhje"))}
    scores, result = data.draw(orders("bhij")), data.draw(orders("bhie"))
    first = data.draw(products(axes["q"], axes["k"], scores))
    second = data.draw(products(scores, axes["v"], result))
    steps = data.draw(st.lists(changes(scores), max_size=3))
    steps.sort(key=lambda step: not step[1])  # what leaves less of the scores goes last
    steps = [step for at, step in enumerate(steps) if step[1] or at == len(steps) - 1]
    by_hand, returned = data.draw(st.booleans()), data.draw(st.integers(0, 5)) == 0
    axis = scores.index("j")

    def program(q: Any, k: Any, v: Any) -> Any:
        x = first(q, k)
        for step, _ in steps:
            x = step(x)
        if by_hand:
            weights = (x - x.amax(axis, keepdim=True)).exp()
            weights = weights / weights.sum(axis, keepdim=True)
        else:
            weights = x.softmax(axis)
        used = weights if weights.shape[axis] == SIZES["j"] else torch.cat([weights, weights.narrow(axis, 0, 1)], axis)
        made = second(used, v)
        return made + weights.sum() if returned else made

    generator = torch.Generator().manual_seed(0)
    exact = [
        torch.randn([SIZES[label] for label in axes[name]], generator=generator, dtype=torch.float64).requires_grad_()
        for name in "qkv"
    ]
    operands = [each.detach().float().requires_grad_() for each in exact]
    expected = program(*exact)
    torch._dynamo.reset()
    with fusions() as log:
        found = einops_fast.compile(program, then="eager", fullgraph=True)(*operands)
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-4)
    weight = torch.linspace(-1, 1, expected.numel(), dtype=torch.float64).view(expected.shape)
    own = torch.autograd.grad((found.double() * weight).sum(), operands)
    wanted = torch.autograd.grad((expected * weight).sum(), exact)
    for one, other in zip(own, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-3, atol=2e-4)
    assert all(each.reason != "unknown" for each in log.missed), str(log)
    if all(able for _, able in steps) and not returned:
        assert len(log.fused) == 1, str(log)
