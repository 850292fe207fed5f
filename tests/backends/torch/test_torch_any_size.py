"""What torch's tracers beside torch.compile record of a call holds for other sizes, with gradients or without."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from einops_fast import attention, contract_expression, fast_einsum, ops, patched, scaled_dot_product_attention
from einops_fast.attention.memory import score_memory

Operands = tuple[torch.Tensor, ...]


def qkv(batch: int, queries: int, keys: int, features: int = 8, kv_heads: int = 4, of_v: int = 0) -> Operands:
    shapes = (queries, 4, features), (keys, kv_heads, features), (keys, kv_heads, of_v or features)
    return tuple([torch.randn(batch, *shape, dtype=torch.float64) for shape in shapes])


def self_attention(**options: Any) -> Callable[..., Any]:
    return lambda q, k, v: attention(q, k, v, layout="bshd", **options)


def paged(q: Any, k: Any, v: Any, block_table: Any, lengths: Any) -> Any:
    pattern = "b i h d, page j h d, page j h e -> b i h e"
    return attention(pattern, q, k, v, block_table=block_table, cache_seqlens=lengths)


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def classes(count: int) -> torch.Tensor:
    return torch.arange(count) % 9


# The call, operands that it is traced with, and others.
ATTENTION: dict[str, tuple[Callable[..., Any], Operands, Operands]] = {
    "plain": (self_attention(), qkv(2, 5, 7), qkv(3, 6, 9)),
    "one of each": (self_attention(), qkv(1, 1, 1), qkv(3, 6, 9)),
    "other features": (self_attention(), qkv(2, 5, 7), qkv(2, 5, 7, 16)),
    "features of v": (
        lambda q, k, v: attention("b i h d, b j h d, b j h e -> b i h e", q, k, v),
        qkv(2, 5, 7, of_v=6),
        qkv(3, 6, 9, of_v=6),
    ),
    "shared heads": (self_attention(), qkv(2, 5, 7, kv_heads=2), qkv(3, 6, 9, kv_heads=2)),
    "causal": (self_attention(causal=True), qkv(2, 5, 5), qkv(3, 6, 9)),
    "the last face each other": (self_attention(causal="bottom_right"), qkv(2, 5, 5), qkv(3, 6, 9)),
    "window": (self_attention(window=2), qkv(2, 5, 5), qkv(3, 6, 6)),
    "softcap": (self_attention(softcap=2.0), qkv(2, 5, 7), qkv(3, 6, 9, 16)),
    "lse": (self_attention(return_lse=True), qkv(2, 5, 7), qkv(3, 6, 9)),
    "bias": (
        lambda q, k, v, bias: attention(q, k, v, layout="bshd", bias=bias),
        (*qkv(2, 5, 7), rows(5, 7)),
        (*qkv(3, 6, 9), rows(6, 9)),
    ),
    "cache": (
        lambda q, k, v, lengths: attention(q, k, v, layout="bshd", cache_seqlens=lengths),
        (*qkv(2, 1, 7), torch.tensor([7, 3])),
        (*qkv(3, 1, 12), torch.tensor([12, 5, 9])),
    ),
    "drop-in": (
        scaled_dot_product_attention,
        (rows(2, 4, 5, 8), rows(2, 4, 7, 8), rows(2, 4, 7, 8)),
        (rows(3, 4, 6, 8), rows(3, 4, 9, 8), rows(3, 4, 9, 8)),
    ),
}
OTHERS: dict[str, tuple[Callable[..., Any], Operands, Operands]] = {
    "einsum": (lambda a, b: fast_einsum("bij,jk->bik", a, b), (rows(2, 3, 4), rows(4, 5)), (rows(5, 6, 4), rows(4, 5))),
    "composed": (
        lambda a, b: fast_einsum("b i (h d), b j (h d) -> b h i j", a, b, h=2),
        (rows(1, 3, 8), rows(1, 5, 8)),
        (rows(2, 4, 8), rows(2, 6, 8)),
    ),
    "linear losses": (
        ops.linear_cross_entropy,
        (rows(8, 6), rows(9, 6), classes(8)),
        (rows(30, 6), rows(9, 6), classes(30)),
    ),
    "linear losses in chunks": (
        lambda x, w, target: ops.linear_cross_entropy(x, w, target, chunk=3),
        (rows(8, 6), rows(9, 6), classes(8)),
        (rows(30, 6), rows(9, 6), classes(30)),
    ),
    "packed attention": (
        lambda x, w: ops.qkv_self_attention(x, 4, w, num_kv_heads=2, is_causal=True),
        (rows(2, 5, 16), rows(24, 16)),
        (rows(3, 6, 16), rows(24, 16)),
    ),
    "losses": (ops.cross_entropy, (rows(8, 9), classes(8)), (rows(30, 9), classes(30))),
    "softmax": (lambda x: ops.softmax(x, causal=True), (rows(2, 5, 5),), (rows(3, 6, 6),)),
    "norm": (lambda x, w: ops.rms_norm(x, (9,), w), (rows(2, 9), rows(9)), (rows(3, 9), rows(9))),
}  # fmt: skip
PAGED = (
    (rows(2, 1, 4, 8), rows(6, 3, 4, 8), rows(6, 3, 4, 8), torch.tensor([[0, 1], [2, 3]]), torch.tensor([5, 6])),
    (rows(2, 1, 4, 8), rows(9, 4, 4, 8), rows(9, 4, 4, 8), torch.tensor([[8, 1, 0], [2, 3, 7]]), torch.tensor([9, 12])),
)
CASES = {**ATTENTION, **OTHERS}

exactly = {"rtol": 1e-11, "atol": 1e-11}
every_mode = pytest.mark.parametrize("mode", ["gradients", "no gradients", "switched off"])
every_case = pytest.mark.parametrize("name", CASES)


def leaves(operands: Operands, gradients: bool = True) -> Operands:
    return tuple([each.clone().requires_grad_(gradients and each.is_floating_point()) for each in operands])


def with_gradients(call: Callable[..., Any], operands: Operands) -> tuple[Any, ...]:
    found = call(*operands)
    found = found if isinstance(found, tuple) else (found,)
    wanted = [each for each in operands if each.requires_grad]
    return (*found, *torch.autograd.grad(sum([each.square().sum() for each in found]), wanted))


def assert_recorded(call: Callable[..., Any], given: Operands, others: Operands, mode: str) -> None:
    """Trace the call, whose graph has to be the same without gradients: torch.jit.trace checks that."""
    with torch.set_grad_enabled(mode != "switched off"), score_memory(1 << 12):
        traced = torch.jit.trace(lambda *x: call(*x), leaves(given, mode != "no gradients"))
    for operands in (leaves(given), leaves(others)):
        torch.testing.assert_close(with_gradients(traced, operands), with_gradients(call, operands), **exactly)


@pytest.mark.filterwarnings("error::torch.jit.TracerWarning")
@every_mode
@pytest.mark.parametrize("name", [*ATTENTION, "paged"])
def test_jit_records_attention_for_any_sizes(name: str, mode: str) -> None:
    assert_recorded(*(CASES.get(name) or (paged, *PAGED)), mode)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@every_mode
@pytest.mark.parametrize("name", OTHERS)
def test_jit_records_others_for_any_sizes(name: str, mode: str) -> None:
    assert_recorded(*CASES[name], mode)


def dynamic(given: Operands, others: Operands) -> list[list[bool]]:
    """Which sizes differ, but for those of 1, which torch takes as they are."""
    return [
        [size != other and size > 1 for size, other in zip(one.shape, another.shape, strict=True)]
        for one, another in zip(given, others, strict=True)
    ]


BY_OLDER_TORCH = {"features of v", "bias", "packed attention"}
"""Cases in which torch itself, before 2.13, turns symbolic sizes into numbers."""


@every_case
def test_fake_tensors_keep_their_symbols(name: str) -> None:
    if name in BY_OLDER_TORCH and torch.__version__ < "2.13":
        pytest.skip("this torch doesn't keep them itself")
    call, given, others = CASES[name]
    for gradients in (False, True):
        mode = FakeTensorMode(shape_env=ShapeEnv())
        fakes = [
            mode.from_tensor(
                each,
                symbolic_context=StatelessSymbolicContext(
                    dynamic_sizes=[DimDynamic.DYNAMIC if differs else DimDynamic.STATIC for differs in own]
                ),
            )
            for each, own in zip(leaves(given, gradients), dynamic(given, others), strict=True)
        ]
        with mode:
            call(*fakes)
        guards = [str(guard.expr) for guard in mode.shape_env.guards]
        assert not [guard for guard in guards if re.fullmatch(r"Eq\(.*, \d+\)", guard)], "a symbol became a number"


@every_case
def test_symbolic_graphs_hold_for_other_sizes(name: str) -> None:
    call, given, others = CASES[name]
    if any(1 in each.shape for each in given):
        pytest.skip("torch takes sizes of 1 as they are")
    # Sizes that are equal when they are traced are one symbol to torch: those of the others are so where they must.
    for make, function in ((tuple, call), (leaves, lambda *x: with_gradients(call, x))):
        graph = make_fx(lambda *x, function=function: function(*x), tracing_mode="symbolic")(*make(others))
        torch.testing.assert_close(graph(*make(given)), function(*make(given)), **exactly)


@pytest.mark.parametrize("way", ["expression", "patched"])
def test_other_calls_of_einsum_take_symbols(way: str) -> None:
    expression = contract_expression("ij,jk->ik", (2, 3), (3, 4))

    def call(a: Any, b: Any) -> Any:
        return expression(a, b) if way == "expression" else torch.einsum("ij,jk->ik", a, b)

    make_fx(call)(rows(2, 3), rows(3, 4))  # what is kept of these isn't for symbols, which may be equal to their sizes
    with patched("torch"):
        graph = make_fx(call, tracing_mode="symbolic")(rows(2, 3), rows(3, 4))
    a, b = rows(5, 6), rows(6, 7)
    torch.testing.assert_close(graph(a, b), a @ b)


@every_case
@pytest.mark.parametrize("order", ["inference first", "training first"])
def test_inference_mode_leaves_nothing_to_training(name: str, order: str) -> None:
    call, given, _ = CASES[name]
    expected = None
    for inference in (
        (True, True, False, False, True) if order == "inference first" else (False, False, True, True, False)
    ):
        with torch.inference_mode(inference):
            operands = leaves(given, not inference)
            if inference:
                call(*operands)
                continue
        found = with_gradients(call, operands)
        expected = found if expected is None else expected
        torch.testing.assert_close(found, expected)
