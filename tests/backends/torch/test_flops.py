"""torch's FlopCounterMode counts our operators as ``explain`` counts calls."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from einops_fast import explain, explain_attention, fast_einsum, nn
from einops_fast.backends.torch.ops.cross_entropy import RowLoss
from einops_fast.backends.torch.ops.linear import linear_by_kernel
from einops_fast.backends.torch.ops.linear_cross_entropy import losses_in_one

nn.register_flop_formulas()


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """What was counted, by the name of the operator; nothing before the block is left."""
    found: dict[str, int] = {}
    with FlopCounterMode(display=False) as counter:
        yield found
    found.update({str(name).rpartition(".")[2]: count for name, count in counter.get_flop_counts()["Global"].items()})


def meta(*shape: int, gradients: bool = True) -> Any:
    return torch.empty(shape, device="meta", requires_grad=gradients)


@pytest.mark.parametrize("equation", ["bij,bjk->bik", "bij,bjk,bkl->bil", "bij,bij->b"])
def test_einsum_counts_what_explain_says(equation: str) -> None:
    shapes = {"bij": (8, 30, 20), "bjk": (8, 20, 10), "bkl": (8, 10, 5)}
    operands = [torch.ones(shapes[term]) for term in equation.partition("->")[0].split(",")]
    with counted() as found:
        torch.ops.einops_fast.einsum(operands, equation, "auto", None, None)
    assert found == {"einsum": explain(equation, *operands).flops}
    with counted() as found:  # eager calls on a CPU are torch's own products
        fast_einsum(equation, *operands)
    assert found == {"bmm": explain(equation, *operands).flops}


def test_the_gradients_of_a_product_count_as_two() -> None:
    operands = [torch.ones(8, 30, 20, requires_grad=True), torch.ones(8, 20, 10, requires_grad=True)]
    with counted() as found:
        torch.ops.einops_fast.einsum(operands, "bij,bjk->bik", "auto", None, None).sum().backward()
    assert found == {"einsum": 3 * explain("bij,bjk->bik", *operands).flops}


@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"window": 3}, {"causal": "bottom_right", "softcap": 2.0}], ids=str
)
@pytest.mark.parametrize("gradients", [False, True])
def test_attention_counts_what_explain_says(options: dict[str, Any], gradients: bool) -> None:
    pytest.importorskip("triton")
    from einops_fast.attention.spec import AttentionInputs
    from einops_fast.backends.torch.attention.call import triton_attention

    pattern = "b h i d, b g j d, b g j e -> b h i e"
    q, k = meta(2, 4, 16, 8, gradients=gradients), meta(2, 2, 24, 8, gradients=gradients)
    given = torch.ones(2, 4, 16, 8, requires_grad=gradients), torch.ones(2, 2, 24, 8, requires_grad=gradients)
    told = explain_attention(pattern, given[0], given[1], given[1], **options)
    views = q.unflatten(1, (2, 2)), k[:, :, None]
    with counted() as found:
        out, _ = triton_attention(told.spec, AttentionInputs(*views, views[1]))
        if gradients:
            out.sum().backward()
    assert sum(found.values()) == told.flops
    assert [*found] == ["attention_forward", "attention_backward"][: 1 + gradients]


def test_linear_counts_one_product() -> None:
    with FakeTensorMode(), counted() as found:
        linear_by_kernel(torch.ones(3, 7, 16), torch.ones(50, 16), None, "gelu", False)
    assert found == {"linear": 2 * 21 * 16 * 50}


@pytest.mark.parametrize(("reduction", "forward", "backward"), [("mean", 3, 0), ("none", 1, 3)])
def test_linear_cross_entropy_counts_a_product_and_two_of_gradients(
    reduction: str, forward: int, backward: int
) -> None:
    """They are made in the forward pass, or of the logits again."""
    product = 2 * 32 * 16 * 50
    with FakeTensorMode(), counted() as found:
        x, matrix = torch.ones(32, 16, requires_grad=True), torch.ones(50, 16, requires_grad=True)
        targets = torch.zeros(32, dtype=torch.int64)
        loss = losses_in_one((x, matrix, None), targets, RowLoss(None, -100, 0.0, 0.0), reduction)
        loss.sum().backward()
    counts = {"linear_cross_entropy": forward, "linear_cross_entropy_gradients": backward}
    assert found == {name: count * product for name, count in counts.items() if count}
