"""Equations, tensors and compiled functions for the tests on torch."""

from collections.abc import Callable
from typing import Any

import torch

Einsum = Callable[..., Any]

SIZES = dict(zip("abcdhijklmn", (2, 3, 2, 3, 2, 3, 4, 2, 3, 2, 2), strict=True))

EQUATIONS = [
    "ij->ji",
    "ijk->",
    "ii->i",
    "ii->",
    "i,j->ij",
    "ij,ij->ij",
    "ij,ij->",
    "ij,kl->ik",  # each operand is summed over by itself
    "ij,jk->ik",
    "ij,jk->ki",
    "iij,jk->ik",
    "bij,bjk->bik",
    "bij,bjk->ibk",
    "bhid,bhjd->bhij",
    "bhij,bhjd->bihd",
    "bind,bjnd->bnij",
    "abij,acjk->bcik",
    "ii,ij->j",
    "ij,jk,kl->il",
    "abc,cd,bd->a",
    "ij,ik,il->jkl",
]

# At these sizes every equation with a contraction is big enough for a GEMM.
LARGE = {"a": 3, "b": 5, "c": 4, "d": 32, "h": 6, "i": 33, "j": 48, "k": 24, "l": 17, "m": 8, "n": 7}

LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "reversed": lambda x: x.permute(*range(x.dim())[::-1]).contiguous().permute(*range(x.dim())[::-1]),
    "last axis outermost": lambda x: x.movedim(-1, 0).contiguous().movedim(0, -1),
    "gaps": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "gaps between rows": lambda x: x.repeat_interleave(2, 0)[::2],
}


def terms_of(equation: str) -> list[str]:
    return equation.partition("->")[0].split(",")


def tensors(equation: str, device: str = "cpu", dtype: Any = torch.float64, **sizes: int) -> list[Any]:
    """Random operands, the same ones at every call; ``sizes`` by letter."""
    of = {**SIZES, **sizes}
    generator = torch.Generator(device).manual_seed(0)
    shapes = [[of[label] for label in term] for term in terms_of(equation)]
    return [torch.randn(shape, dtype=dtype, device=device, generator=generator) for shape in shapes]


def whole(function: Callable[..., Any], backend: Any = "aot_eager", **options: Any) -> Any:
    """The function compiled without a break, and without anything that was compiled before."""
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, backend=backend, **options)


def same(got: Any, wanted: Any, **tolerance: Any) -> None:
    """Values, dtype, device, layout, and whether a gradient is wanted."""
    torch.testing.assert_close(got, wanted, **tolerance)
    assert type(got) is type(wanted)
    assert got.requires_grad == wanted.requires_grad


def outcome(call: Callable[[], Any]) -> Any:
    """The result, or that there was an error. Which one is for `test_errors`."""
    try:
        return call()
    except (NotImplementedError, RuntimeError, TypeError, ValueError):
        return Exception


def compiled(function: Callable[..., Any], *operands: Any, **options: Any) -> tuple[Any, list[str]]:
    """The result of the compiled function, and the functions that its graph calls."""
    called: list[str] = []

    def keep(graph: Any, _: Any) -> Any:
        targets = [node.target for node in graph.graph.nodes]
        called.extend(str(each) if "einops_fast" in str(each) else getattr(each, "__name__", "") for each in targets)
        return graph

    return whole(function, keep, **options)(*operands), called
