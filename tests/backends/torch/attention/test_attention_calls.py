"""Whole calls of `attention` by the kernels of this package, on arrays as they are given: again and again, changed."""

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from attention_problems import DEVICE, randn, whole_calls

from einops_fast import attention, attention_backend, autotune
from einops_fast.backends.torch.attention.implementations.triton import Triton
from einops_fast.runtime.tuning import current_mode

Case = tuple[str, tuple[tuple[int, ...], ...], dict[str, Any]]

EACH = ((2, 7, 4, 16), (2, 9, 4, 16), (2, 9, 4, 8))
CASES: dict[str, Case] = {
    "batch heads positions": ("bhid,bhjd,bhje->bhie", ((2, 4, 7, 16), (2, 4, 9, 16), (2, 4, 9, 8)), {}),
    "batch positions heads": ("bihd,bjhd,bjhe->bihe", EACH, {"causal": "bottom_right"}),
    "result in another order": ("bihd,bjhd,bjhe->ehib", EACH, {"return_lse": True}),
    "heads that share": ("bihd,bjgd,bjge->bihe", (EACH[0], (2, 9, 2, 16), (2, 9, 2, 8)), {"return_lse": True}),
    "heads in two axes": ("bigrd,bjgd,bjge->bgrie", ((2, 7, 2, 2, 16), (2, 9, 2, 16), (2, 9, 2, 8)), {}),
    "one head of keys": ("bihd,bjd,bje->bihe", (EACH[0], (2, 9, 16), (2, 9, 8)), {"window": (4, 1)}),
    "keys of all": ("bihd,jhd,bjhe->bihe", (EACH[0], (9, 4, 16), EACH[2]), {}),
    "values of a batch of their own": ("bihd,bjhd,cbjhe->cbihe", (*EACH[:2], (3, *EACH[2])), {"causal": True}),
    "queries of all": ("ihd,bjhd,bjhe->bihe", ((7, 4, 16), *EACH[1:]), {}),
    "one query": ("bhd,bjhd,bjhe->bhe", ((2, 4, 16), *EACH[1:]), {}),
    "bias": ("bihd,bjhd,bjhe->bihe", EACH, {"bias": ("ihbj", (7, 4, 2, 9))}),
    "bias that is shared": ("bihd,bjhd,bjhe->bihe", EACH, {"bias": ("jhi", (9, 4, 7)), "softcap": 3.0}),
    "sinks": (
        "bihd,bjgd,bjge->bihe",
        (EACH[0], (2, 9, 2, 16), (2, 9, 2, 8)),
        {"sinks": ("h", (4,)), "return_lse": True},
    ),
    "slopes": ("bihd,bjhd,bjhe->bihe", EACH, {"alibi_slopes": ("h", (4,))}),
    "mask": ("bihd,bjhd,bjhe->bihe", EACH, {"mask": ("bij", (2, 7, 9))}),
    "packed": ("ihd,jhd,jhe->hie", ((14, 4, 16), (14, 4, 16), (14, 4, 8)), {"packed": (0, 3, 14), "return_lse": True}),
}


@pytest.fixture(autouse=True)
def by_kernels() -> Iterator[None]:
    with whole_calls():
        yield


def _arguments(case: Case, seed: int) -> tuple[list[Any], dict[str, Any], list[Any]]:
    """Positional arguments, others, and what has gradients."""
    generator = torch.Generator().manual_seed(seed)

    def randn(shape: tuple[int, ...]) -> Any:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE)

    pattern, shapes, options = case
    leaves = [randn(shape).requires_grad_() for shape in shapes]
    given = dict(options)
    for name in ("bias", "sinks", "alibi_slopes", "mask"):
        if name in options:
            axes, shape = options[name]
            array = randn(shape)
            if name == "mask":
                array = array > -0.5
            elif name != "alibi_slopes":
                leaves.append(array.requires_grad_())
            given[name] = axes, array
    if "packed" in options:
        ends = given.pop("packed")
        given |= {"cu_seqlens_q": torch.tensor(ends, device=DEVICE), "max_seqlen_q": 11, "sequence": ("i", "j")}
    return [pattern, *leaves[:3]], given, leaves


def _results(way: str, arguments: list[Any], options: dict[str, Any]) -> tuple[Any, ...]:
    with attention_backend(way):
        found = attention(*arguments, **options)
    return found if isinstance(found, tuple) else (found,)


def _gradients(results: tuple[Any, ...], leaves: list[Any], seed: int, **options: Any) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    given = [torch.randn(each.shape, generator=generator, dtype=torch.float64).to(each) for each in results]
    return [*torch.autograd.grad(results, leaves, given, **options)]


def _check(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert not one.isnan().any()
        # As the kernels' own tests: on a GPU, their constants are float32.
        one, other = one.detach(), other.detach()
        assert float((one - other).abs().max()) <= 3e-5 * max(1.0, float(other.abs().max()))


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name: str) -> None:
    for seed in range(2):  # the second time nothing is thought about
        arguments, options, leaves = _arguments(CASES[name], seed)
        found, expected = (_results(way, arguments, options) for way in ("triton", "math"))
        _check(found, expected)
        assert found[0].is_contiguous()
        if seed:
            # Without a gradient of the log, and one of the result that is the same everywhere.
            found, expected = ((each[0].sum(),) for each in (found, expected))
        _check(_gradients(found, leaves, seed), _gradients(expected, leaves, seed))


@pytest.mark.parametrize("name", ["heads that share", "bias that is shared", "sinks"])
def test_gradients_of_gradients(name: str) -> None:
    arguments, options, leaves = _arguments(CASES[name], 0)
    again = []
    for way in ("triton", "math"):
        first = _gradients(_results(way, arguments, options), leaves, 1, create_graph=True)
        again.append(_gradients(tuple(first), leaves, 2))
    _check(*again)


def test_what_changes_takes_effect() -> None:
    arguments, options, _ = _arguments(CASES["batch positions heads"], 0)
    used = []
    run = Triton.prepared

    def prepared(self: Triton, plan: Any, arrays: Any) -> Any:
        used.append(plan.spec.deterministic)
        return run(self, plan, arrays)

    with mock.patch.object(Triton, "prepared", prepared):
        for _ in range(2):
            _results("triton", arguments, options)
            _results("math", arguments, options)
        assert used == [False]
        with autotune("never" if current_mode() == "always" else "always"):
            _results("triton", arguments, options)
        assert used == [False, False]
        torch.use_deterministic_algorithms(True)
        try:
            _results("triton", arguments, options)
        finally:
            torch.use_deterministic_algorithms(False)
        assert used == [False, False, True]
        _results("triton", arguments, options)
        assert len(used) == 3


def test_dropout_is_drawn_anew_and_again() -> None:
    arguments, options, leaves = _arguments(CASES["batch positions heads"], 0)
    options["dropout_p"] = 0.5
    results = []
    for seed in (0, None, 0):
        if seed is not None:
            torch.manual_seed(seed)
        (out,) = _results("triton", arguments, options)
        results.append((out, *torch.autograd.grad(out.sum(), leaves)))
    assert not torch.equal(results[0][0], results[1][0])
    for one, other in zip(results[0], results[2], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["heads that share", "bias", "sinks"])
def test_a_batch_of_gradients(name: str) -> None:
    """Of several at a time, torch calls the operator for each."""
    arguments, options, leaves = _arguments(CASES[name], 0)
    results = _results("triton", arguments, options)
    seeds = [torch.stack([each.detach().cos(), each.detach().sin()]) for each in results]
    one_by_one = [
        torch.autograd.grad(results, leaves, [seed[at] for seed in seeds], retain_graph=True) for at in range(2)
    ]
    found = torch.autograd.grad(results, leaves, seeds, is_grads_batched=True)
    _check(found, map(torch.stack, zip(*one_by_one, strict=True)))


def test_gradient_of_a_bias_beside_segments() -> None:
    """Blocks that no segment reaches have one, too: zero. Numbers of segments are told apart by all bits."""
    q, k, v = (randn(1, 1, 40, 16, seed=at).requires_grad_() for at in range(3))
    bias = randn(1, 1, 40, 40, seed=3).requires_grad_()
    ids = torch.tensor([7] * 20 + [7 + (1 << 32)] * 20, device=DEVICE)
    found = []
    for way in ("triton", "math"):
        with attention_backend(way):
            out = attention(
                "b h i d, b h j d, b h j e -> b h i e", q, k, v, bias=("b h i j", bias),
                segment_ids=(("i", ids), ("j", ids)),
            )  # fmt: skip
        junk = torch.full((1 << 16,), torch.nan, device=DEVICE)
        del junk
        found.append(torch.autograd.grad(out.square().sum(), [q, k, v, bias]))
    _check(*found)
