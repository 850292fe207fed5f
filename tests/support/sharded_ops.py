"""Row operators on DTensors, against the same on one device: forward, backward, placements, collectives."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from ranks import agree, placed, randoms, same

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


def check(mesh: Any, run: Call, shapes: str, given: str, *expected: Any) -> None:
    agree(mesh, run, randoms(shapes), given, *expected)


def check_losses(mesh: Any, rows: int) -> None:
    """Losses of rows that ranks share, some of which don't count, with all options; the gradients of logits."""
    (logits,) = randoms(f"{rows} 5 7")
    target = torch.randint(0, 7, (rows, 5))
    target[torch.rand(rows, 5) < 0.3] = -100
    target[0] = -100  # the first rank has more of them, or no other
    chances, weight = torch.rand(rows, 5, 7, dtype=torch.float64).softmax(-1), torch.rand(7, dtype=torch.float64)
    smooth = {"z_loss": 0.1, "label_smoothing": 0.1}
    for text, at in (("0", "0"), ("1", "r"), ("r", "0"), ("2", "r")):
        run = partial(ops.cross_entropy, dim=-1, reduction="none")
        agree(mesh, run, (logits, target), f"{text}, {at}")
        for reduction in ("mean", "sum"):
            run = partial(ops.cross_entropy, dim=-1, reduction=reduction)
            agree(mesh, run, (logits, target), f"{text}, {at}", "r")
            agree(mesh, partial(run, **smooth), (logits, target), f"{text}, {at}", "r")
            agree(mesh, run, (logits, target, weight), f"{text}, {at}, r", "r")
            agree(mesh, run, (logits, chances), f"{text}, {at}", "r")


def check_linear_losses(mesh: Any) -> None:
    """The matrix's gradient is whole; a matrix whose classes are sharded is gathered."""
    x, matrix, bias = randoms("6 4, 8 4, 8")
    values = x, matrix, torch.tensor([1, -100, 7, 0, 3, 3]), bias
    for reduction in ("mean", "sum", "none"):
        for given in ("0, r, 0, r", "r, 0, 0, 0", "1, 1, 0, r"):
            agree(mesh, partial(ops.linear_cross_entropy, reduction=reduction), values, given)


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
    for given in ("0, r", "r, 0", "r, r"):
        agree(mesh, lambda x, w: ops.qkv_self_attention(x, 4, w, is_causal=True), randoms("4 5 16, 48 16"), given)


def cases(four: Any, square: Any) -> dict[str, Callable[[], None]]:
    """All, by name."""
    found: dict[str, Callable[[], None]] = {}
    for at, case in enumerate(ON_FOUR):
        found[f"operator {at} of {case[1]} at {case[2]}"] = partial(check, four, *case)
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
