"""Row operators on DTensors, against the same on one device: forward, backward, placements, collectives."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from ranks import Traffic, placed, same, spelled

from einops_fast import OperandError, ops

Call = Callable[..., Any]

GATHER, REDUCE = {"all_gather_into_tensor": 1}, {"all_reduce": 1}

SOFTMAX: dict[str, Call] = {
    "softmax": lambda x: ops.softmax(x, -1),
    "log_softmax": lambda x: ops.log_softmax(x, 1),
    "causal": lambda x: ops.softmax(x, -1, causal=True),
    "causal, bottom right": lambda x: ops.softmax(x, 0, causal="bottom_right"),
    "masked": lambda x, mask: ops.softmax(x, -1, mask=mask),
}

# Function, shapes, placements, those of the result, collectives.
ON_FOUR: list[tuple[Call, str, str, str, dict[str, int]]] = [
    *[(SOFTMAX["softmax"], "8 6 5", at, at, {}) for at in ("0", "1", "r")],
    (SOFTMAX["softmax"], "3 6 8", "2", "r", GATHER),
    (SOFTMAX["softmax"], "3 6 8", "p", "r", REDUCE),
    (SOFTMAX["log_softmax"], "8 6 5", "0", "0", {}),
    (SOFTMAX["log_softmax"], "8 6 5", "1", "r", GATHER),
    *[(SOFTMAX["causal"], "3 7 9", at, at, {}) for at in ("0", "1", "r")],
    (SOFTMAX["causal"], "3 7 9", "2", "r", GATHER),
    *[(SOFTMAX["causal, bottom right"], "5 3 6", at, at, {}) for at in ("1", "2")],
    *[(SOFTMAX["masked"], f"8 6 5, {mask}", at, "0", {}) for mask, at in (("8 1 5", "0, 0"), ("6 5", "0, r"))],
    (SOFTMAX["masked"], "8 6 5, 1 6 5", "1, 1", "1", {}),
    *[(lambda x, w, b: ops.layer_norm(x, weight=w, bias=b), "8 3 6, 6, 6", f"{at}, r, r", at, {}) for at in ("0", "1")],
    (lambda x, w, b: ops.layer_norm(x, weight=w, bias=b), "8 3 6, 6, 6", "2, 0, 0", "r", {"all_gather_into_tensor": 3}),
    (lambda x, w: ops.rms_norm(x, weight=w), "6 6, 6", "0, r", "0", {}),
    (lambda x, w: ops.rms_norm(x, (3, 6), w), "8 3 6, 3 6", "0, 0", "0", GATHER),
    (lambda x, r, w: ops.dropout_add_layer_norm(x, r, w)[0], "8 6, 8 6, 6", "0, 0, r", "0", {}),
    (lambda x, b: ops.bias_gelu(x, b), "8 3 6, 6", "0, r", "0", {}),
    (lambda x, b: ops.bias_gelu(x, b), "8 3 8, 8", "2, 0", "2", {}),
    (lambda x, b: ops.dropout_bias_activation(x, b, "silu"), "8 3 6, 6", "p, r", "r", REDUCE),
    (lambda x, w, b: ops.linear(x, w, b, activation="relu"), "8 3 6, 4 6, 4", "0, r, r", "0", {}),
    (lambda x, w, b: ops.linear(x, w, b, activation="relu"), "8 3 6, 8 6, 8", "r, 0, 0", "2", {}),
    (lambda x, w, b: ops.linear(x, w, b, activation="relu"), "3 8, 4 8, 4", "1, 1, r", "r", REDUCE),
    (lambda x, w: ops.linear(x, w), "3 8, 4 8", "1, 1", "p", {}),
]


def check(mesh: Any, run: Call, shapes: str, given: str, result: str, collectives: dict[str, int]) -> None:
    """One call and its gradients."""
    values = [
        torch.randn([*map(int, shape.split())], dtype=torch.float64).requires_grad_() for shape in shapes.split(",")
    ]
    texts = [each.strip() for each in given.split(",")]
    arrays = [placed(value, mesh, text) for value, text in zip(values, texts, strict=True)]
    with Traffic() as traffic:
        found = run(*arrays)
    assert (spelled(found), traffic.calls) == (result, collectives), (spelled(found), traffic.calls)
    wanted = run(*values)
    same(found, wanted.detach())
    weight = torch.randn_like(wanted)
    (wanted * weight).sum().backward()
    (found.full_tensor() * weight).sum().backward()
    for array, text, value in zip(arrays, texts, values, strict=True):
        assert spelled(array.grad) == text.replace("p", "r")
        same(array.grad, value.grad)


def check_losses(mesh: Any, rows: int) -> None:
    """Losses of rows that ranks share, some of which don't count, with all options; the gradients of logits."""
    logits = torch.randn(rows, 5, 7, dtype=torch.float64).requires_grad_()
    target = torch.randint(0, 7, (rows, 5))
    target[torch.rand(rows, 5) < 0.3] = -100
    target[0] = -100  # the first rank has more of them, or no other
    weight = torch.rand(7, dtype=torch.float64)
    chances = torch.rand(rows, 5, 7, dtype=torch.float64).softmax(-1)
    for text, at in (("0", "0"), ("1", "r"), ("r", "0"), ("2", "r")):
        for reduction in ("mean", "sum", "none"):
            for options in ({}, {"z_loss": 0.1, "label_smoothing": 0.1}, {"weight": weight}, {"target": chances}):
                if options and reduction == "none":
                    continue
                given = {"dim": -1, "target": target, **options}
                wanted = ops.cross_entropy(logits, reduction=reduction, **given)
                (gradient,) = torch.autograd.grad(wanted.sum(), logits)
                x = placed(logits, mesh, text)
                tensors = {name: placed(each, mesh, at if name == "target" else "r")
                           for name, each in given.items() if isinstance(each, torch.Tensor)}  # fmt: skip
                found = ops.cross_entropy(x, reduction=reduction, **{**given, **tensors})
                assert reduction == "none" or spelled(found) == "r"
                same(found, wanted.detach())
                found.sum().backward()
                assert spelled(x.grad) == text
                same(x.grad, gradient)


def check_linear_losses(mesh: Any) -> None:
    """The matrix's gradient is whole; a matrix whose classes are sharded is gathered."""
    values = torch.randn(6, 4).requires_grad_(), torch.randn(8, 4).requires_grad_(), torch.randn(8).requires_grad_()
    target = torch.tensor([1, -100, 7, 0, 3, 3])
    for reduction in ("mean", "sum", "none"):
        for given in ("0, r, r", "r, 0, 0", "1, 1, r"):
            texts = given.split(", ")
            x, matrix, bias = arrays = [placed(each, mesh, text) for each, text in zip(values, texts, strict=True)]
            wanted = ops.linear_cross_entropy(values[0], values[1], target, values[2], reduction=reduction)
            gradients = torch.autograd.grad(wanted.sum(), values)
            found = ops.linear_cross_entropy(x, matrix, placed(target, mesh, "0"), bias, reduction=reduction)
            same(found, wanted.detach(), 1e-5)
            found.sum().backward()
            for array, text, gradient in zip(arrays, texts, gradients, strict=True):
                assert spelled(array.grad) == text
                same(array.grad, gradient, 1e-5)


def check_half(mesh: Any) -> None:
    """A mean whose sum is more than float16 can hold."""
    logits, target = 30 * torch.randn(4096, 8).half(), torch.randint(0, 8, (4096,))
    found = ops.cross_entropy(placed(logits, mesh, "0"), placed(target, mesh, "0"))
    assert found.dtype == torch.float16
    same(found.float(), ops.cross_entropy(logits.float(), target), 1e-2)


def check_dropout(mesh: Any) -> None:
    """What is kept is scaled, and about as much as was asked for."""
    for run in (
        lambda x: ops.dropout_bias_activation(x, None, "none", 0.5),
        lambda x: ops.dropout_add_layer_norm(x, torch.zeros_like(x), p=0.5)[1],
    ):
        kept = run(placed(torch.ones(64, 64), mesh, "0")).full_tensor()
        assert set(kept.flatten().tolist()) == {0.0, 2.0}
        assert 0.4 < (kept > 0).float().mean() < 0.6


def check_errors(mesh: Any) -> None:
    """A plain parameter beside a DTensor."""
    with pytest.raises(OperandError, match="weight is of type Tensor; the input is an array of DTensor"):
        ops.layer_norm(placed(torch.ones(8, 4), mesh, "0"), weight=torch.ones(4))


def check_self_attention(mesh: Any) -> None:
    """The packed projection of a batch that is sharded, and of heads."""
    x, weight = torch.randn(4, 5, 16).requires_grad_(), torch.randn(48, 16).requires_grad_()
    wanted = ops.qkv_self_attention(x, 4, weight, is_causal=True)
    gradients = torch.autograd.grad(wanted.square().sum(), (x, weight))
    for texts in (("0", "r"), ("r", "0"), ("r", "r")):
        arrays = [placed(each, mesh, text) for each, text in zip((x, weight), texts, strict=True)]
        found = ops.qkv_self_attention(arrays[0], 4, arrays[1], is_causal=True)
        same(found, wanted.detach(), 1e-4)
        found.square().sum().backward()
        for array, gradient in zip(arrays, gradients, strict=True):
            same(array.grad, gradient, 1e-3)


def cases(four: Any, square: Any) -> dict[str, Callable[[], None]]:
    """All, by name."""
    found: dict[str, Callable[[], None]] = {}
    for at, (run, shapes, given, result, collectives) in enumerate(ON_FOUR):
        found[f"operator {at} of {shapes} at {given}"] = partial(check, four, run, shapes, given, result, collectives)
    found["layer norm on two dimensions"] = partial(
        check, square, lambda x, w: ops.layer_norm(x, weight=w), "4 6 5, 5", "01, rr", "01", {}
    )
    for rows in (8, 3):
        found[f"losses of {rows} rows"] = partial(check_losses, four, rows)
    found["losses of linear layers"] = partial(check_linear_losses, four)
    found["losses in float16"] = partial(check_half, four)
    found["dropout"] = partial(check_dropout, four)
    found["errors of operators"] = partial(check_errors, four)
    found["self-attention"] = partial(check_self_attention, four)
    return found
