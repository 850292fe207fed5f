"""Attention whose lengths change from call to call, on a CPU: right for any, by the plan of one."""

from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

from einops_fast import attention, attention_backend, scaled_dot_product_attention
from einops_fast.attention import attend
from einops_fast.errors import EinsumError
from einops_fast.runtime.plan_cache import clear_plans


@pytest.fixture(autouse=True)
def nothing_planned() -> None:
    clear_plans()


def plain(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


CALL = "b h i d, b h j d, b h j e -> b h i e"
CALLS = {
    "bhsd": (lambda q, k, v: attention(q, k, v, layout="bhsd"), (0, 1, 2, 3)),
    "bshd": (lambda q, k, v: attention(q, k, v, layout="bshd"), (0, 2, 1, 3)),
    "words": (lambda q, k, v: attention("b h d i, b h d j, b h e j -> b h e i", q, k, v), (0, 1, 3, 2)),
    "torch's name": (scaled_dot_product_attention, (0, 1, 2, 3)),
}


def plans(name: str, sizes: list[tuple[int, ...]]) -> list[int]:
    """How many calls are planned after each of these calls, which are right."""
    (call, order), found = CALLS[name], []
    for batch, heads, q_len, kv_len, head_dim in sizes:
        q = torch.randn(batch, heads, q_len, head_dim, dtype=torch.float64)
        k, v = torch.randn(2, batch, heads, kv_len, head_dim, dtype=torch.float64)
        result = call(*[each.permute(order).contiguous() for each in (q, k, v)])
        torch.testing.assert_close(result.permute(order), plain(q, k, v))
        found.append(len(attend._calls))
    return found


@pytest.mark.parametrize("name", CALLS)
def test_every_length_is_right_and_has_the_plan_of_the_first(name: str) -> None:
    sizes = [(2, 4, 5, 7, 8), (2, 4, 6, 6, 8), (2, 4, 1, 9, 8), (3, 2, 9, 1, 4), (1, 1, 3, 2, 8), (2, 4, 5, 7, 8)]
    assert plans(name, sizes * 2) == [1] * 12
    for single in ((1, 4), (3, 1)):  # one sequence or one head
        clear_plans()
        kinds = [each for each in (single, single, single, (3, 2), (1, 1)) for _ in range(2)]
        planned = plans(
            name, [(*kind, 1 if at % 2 else 5 + at, 4 + at if at % 2 else 7, 8) for at, kind in enumerate(kinds)]
        )
        assert planned == [1] * 10


OTHERS = {
    "gradients": lambda q, k: (q.requires_grad_(), k, k),
    "dtype": lambda q, k: (q.float(), k.float(), k.float()),
    "shared heads": lambda q, k: (q, k[:, :2], k[:, :2]),
    "width of v": lambda q, k: (q, k, k[..., :4]),
    "strides": lambda q, k: (q.mT.contiguous().mT, k, k),
    "no keys": lambda q, k: (q, k[:, :, :0], k[:, :, :0]),
}


@pytest.mark.parametrize("other", OTHERS)
def test_operands_of_another_kind(other: str) -> None:
    for length in (3, 4, 5):
        q = torch.randn(2, 4, length, 8, dtype=torch.float64)
        attention(q, q, q, layout="bhsd")
    q, k, v = OTHERS[other](torch.randn(2, 4, 6, 8).double(), torch.randn(2, 4, 7, 8).double())
    found = attention(q, k, v, layout="bhsd")
    heads = q.shape[1] // k.shape[1]
    wide = k.repeat_interleave(heads, 1), v.repeat_interleave(heads, 1)
    torch.testing.assert_close(found, plain(q, *wide))


@pytest.mark.parametrize("causal", [True, "bottom_right"])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3, -0.5])
def test_causal_lengths_whichever_query_faces_the_last_key(causal: Any, gradients: bool, scale: float | None) -> None:
    """One query of many keys, as many as keys, fewer and more of them, whose first ones see nothing."""
    for q_len, kv_len in ((1, 5), (1, 6), (4, 4), (5, 5), (3, 7), (7, 3), (1, 1), (2, 1), (200, 300)):
        q = torch.randn(2, 4, q_len, 8, requires_grad=gradients)
        k, v = (torch.randn(2, 2, kv_len, 8, requires_grad=gradients) for _ in range(2))
        found = attention(q, k, v, layout="bhsd", causal=causal, scale=scale)
        exact = [each.detach().double().requires_grad_(gradients) for each in (q, k, v)]
        with attention_backend("math"):
            expected = attention(*exact, layout="bhsd", causal=causal, scale=scale)
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
        if gradients:
            seed = torch.randn_like(expected)
            wanted = torch.autograd.grad(expected, exact, seed)
            for own, other in zip(torch.autograd.grad(found, (q, k, v), seed.float()), wanted, strict=True):
                torch.testing.assert_close(own.double(), other, rtol=1e-4, atol=1e-5)
    if scale is None or scale > 0:
        assert len([words for _, (names, *_), words in attend._calls if names is None]) == 1


def test_transforms_of_lengths_that_are_new() -> None:
    """torch's own function has no derivative forward."""

    def call(q: Any) -> Any:
        return attention(q, q * 2, q + 1, layout="bhsd")

    for length in (3, 4, 5, 6):
        call(torch.randn(2, 4, length, 8, dtype=torch.float64))
    for length in (7, 8):
        q, tangent = torch.randn(2, 2, 4, length, 8, dtype=torch.float64)
        expected = torch.func.jvp(lambda q: plain(q, q * 2, q + 1), (q,), (tangent,))
        torch.testing.assert_close(torch.func.jvp(call, (q,), (tangent,)), expected)
        with forward_ad.dual_level():
            torch.testing.assert_close(
                forward_ad.unpack_dual(call(forward_ad.make_dual(q, tangent))).tangent, expected[1]
            )


@pytest.mark.parametrize(("axis", "message"), [(0, "'b'"), (1, "'h'"), (2, "'j'"), (3, "'d'")])
def test_sizes_that_do_not_fit_are_told_after_many_lengths(axis: int, message: str) -> None:
    for length in (3, 4, 5):
        attention(CALL, *[torch.randn(2, 4, length, 8) for _ in range(3)])
    for length in (5, 6):
        k = torch.randn(*[size + 2 * (at == axis) for at, size in enumerate((2, 4, length, 8))])
        v = torch.randn(*[size + 2 * (at == axis != 2) for at, size in enumerate((2, 4, length, 8))])
        with pytest.raises(EinsumError, match=message):
            attention(CALL, torch.randn(2, 4, 6, 8), k, v[..., :8])


def _mask(q_len: int, kv_len: int, *lead: int) -> torch.Tensor:
    return torch.rand(*lead, q_len, kv_len) > 0.3


KINDS: dict[str, tuple[Any, dict[str, Any], int]] = {
    "causal": (None, {"is_causal": True}, 4),
    "mask": (_mask, {}, 4),
    "mask of sequences": (lambda q_len, kv_len: _mask(1, kv_len, 2, 1), {}, 4),
    "bias": (torch.randn, {}, 4),
    "bias of heads": (lambda q_len, kv_len: torch.randn(2, 4, q_len, kv_len), {"scale": 0.3}, 4),
    "bias with a gradient": (lambda *sizes: torch.randn(sizes).requires_grad_(), {}, 4),
    "shared heads": (None, {"enable_gqa": True}, 2),
    "shared heads, causal": (None, {"enable_gqa": True, "is_causal": True, "scale": 0.5}, 2),
}


def _call(call: Any, kind: str, lengths: tuple[int, int], gradients: bool, dtype: Any, mt: bool) -> list[Any]:
    torch.manual_seed(lengths[0])
    make, options, kv_heads = KINDS[kind]
    q, k, v = (
        torch.randn(2, size, heads, 8).to(dtype).transpose(1, 2) if mt else torch.randn(2, heads, size, 8).to(dtype)
        for size, heads in zip((lengths[0], lengths[1], lengths[1]), (4, kv_heads, kv_heads), strict=True)
    )
    leaves = [q, k, v]
    if make is not None:
        mask = make(*lengths)
        options = {**options, "attn_mask": mask if mask.dtype == torch.bool else mask.detach().to(dtype)}
        if mask.requires_grad:
            leaves.append(options["attn_mask"])
    if not gradients:
        return [call(q, k, v, **options)]
    result = call(*[each.requires_grad_() for each in leaves][:3], **options)
    first = torch.autograd.grad(result.square().sum(), leaves, create_graph=True)
    return [result, *first, *torch.autograd.grad(first[0].square().sum(), leaves[:2])]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_calls_of_other_kinds_are_not_planned_for_each_length(kind: str, transposed: bool) -> None:
    """Also where gradients are asked for, before or after the same lengths came without them."""
    native, ours = torch.nn.functional.scaled_dot_product_attention, scaled_dot_product_attention
    lengths = [(5, 7), (6, 6), (9, 3), (2, 4), (7, 5), (8, 9)]
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-3)):
        for gradients in (False, True, False):
            before = len(attend._calls)
            for pair in lengths if gradients else [(q_len + 10, kv_len) for q_len, kv_len in lengths]:
                found = _call(ours, kind, pair, gradients, dtype, transposed)
                wide = _call(reference if gradients else native, kind, pair, gradients, dtype, transposed)
                torch.testing.assert_close(found, wide, rtol=tolerance, atol=tolerance)
            assert len(attend._calls) - before <= 2


def reference(*operands: Any, **options: Any) -> Any:
    """torch's function in a form that can be differentiated twice."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(*operands, **options)


def test_masks_with_other_axes_of_one_element_are_not_taken_for_those_that_came() -> None:
    for lengths in ((4, 5), (3, 6), (7, 2)):
        q, k = torch.randn(2, 4, lengths[0], 8), torch.randn(2, 4, lengths[1], 8)
        scaled_dot_product_attention(q, k, k, torch.randn(*lengths))
    for shape in ((9,), (4, 1, 9), (2, 1, 1, 9), (1, 9), (4, 1), (3, 4, 9)):
        q, k = torch.randn(2, 4, 4, 8), torch.randn(2, 4, 9, 8)
        mask = torch.randn(shape)
        if shape[0] == 3:
            with pytest.raises(EinsumError, match="bias"):
                scaled_dot_product_attention(q, k, k, mask)
            continue
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, k, mask.expand(2, 4, 4, 9))
        torch.testing.assert_close(scaled_dot_product_attention(q, k, k, mask), expected)
    q = torch.randn(2, 4, 4, 8)  # as many heads as queries
    for kv_len in (5, 6, 7):
        k, heads = torch.randn(2, 4, kv_len, 8), torch.randn(4, kv_len)
        found = attention("b h i d, b h j d, b h j e -> b h i e", q, k, k, bias=("h j", heads))
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, k, heads[:, None].expand(4, 4, kv_len))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("layout", ["bhsd", "bshd", "hbsd", "sbhd"])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("heads", [(4, 4), (4, 1), (4, 2), (1, 1)])
def test_one_query_of_a_batch_of_one_is_not_planned_for_each_length(
    layout: str, batch: int, heads: tuple[int, int]
) -> None:
    """Of several axes of one element, the layout tells which is which."""
    native, order = torch.nn.functional.scaled_dot_product_attention, [layout.index(axis) for axis in "bhsd"]
    sizes = [*[(batch, 1, length) for length in range(5, 11)], (3, 6, 7), (1, 2, 1), (2, 1, 1)]
    for count, q_len, kv_len in sizes:
        shapes = [(count, heads[0], q_len, 8), *[(count, heads[1], kv_len, 8)] * 2]
        wide = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
        given = [each.permute(["bhsd".index(axis) for axis in layout]).contiguous() for each in wide]
        found = attention(*given, layout=layout).permute(order)
        torch.testing.assert_close(found, native(*wide, enable_gqa=True))
    if layout != "hbsd" or heads != (4, 2):  # there, heads that share keys are the batch
        assert len(attend._calls) <= 3
