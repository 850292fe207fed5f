"""A patched function is the same object to code that compares it, keys tables by it, pickles it or holds it."""

import pickle
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from python_process import run_python

from einops_fast import patched

functional = torch.nn.functional

A, B = (3, 4), (4, 5)
TIMES = ("before", "while", "after")
"""When a table was filled, or a reference taken, beside the patch."""


def at(time: str, make: Any, *names: str) -> Any:
    """What ``make`` gives at this time beside a patch, which is over unless the time is ``while``."""
    with patched(*names) if time == "while" else nullcontext():
        return make()


class Metres:
    """A duck array that knows functions by a table, as libraries of units have it."""

    handled: dict[Any, Any]

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return self.handled[func](*args, **kwargs) if func in self.handled else NotImplemented


class InMetres(np.ndarray):
    """The same as a subclass, which falls back to the function without units."""

    handled: dict[Any, Any]

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func in self.handled:
            return self.handled[func](*args, **kwargs)
        return super().__array_function__(func, types, args, kwargs)


def tensor_type(handled: dict[Any, Any]) -> Any:
    class InSeconds(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in handled:
                return handled[func](*args, **(kwargs or {}))
            return super().__torch_function__(func, types, args, kwargs or {})

    return InSeconds


def squared(*operands: Any, **options: Any) -> str:
    return "squared"


def attends(*operands: Any, **options: Any) -> str:
    return "attends"


@pytest.mark.parametrize("called", TIMES)
@pytest.mark.parametrize("filled", TIMES)
@pytest.mark.parametrize("kind", [Metres, InMetres])
def test_tables_of_array_function(kind: Any, filled: str, called: str) -> None:
    kind.handled = at(filled, lambda: {np.einsum: squared}, "numpy")
    array = Metres(np.ones(A)) if kind is Metres else np.ones(A).view(InMetres)
    assert at(called, lambda: np.einsum("ij,jk->ik", array, np.ones(B)), "numpy") == "squared"
    assert at(called, lambda: np.einsum("ij,ik->jk", np.ones(A), array), "numpy") == "squared"
    assert at(called, lambda: np.einsum(array, [0, 1]), "numpy") == "squared"
    assert at(called, lambda: np.einsum("ij,jk->ik", np.ones(A), np.ones(B), out=array), "numpy") == "squared"


@pytest.mark.parametrize("called", TIMES)
@pytest.mark.parametrize("filled", TIMES)
def test_tables_of_torch_function(filled: str, called: str) -> None:
    handled = at(
        filled, lambda: {torch.einsum: squared, functional.scaled_dot_product_attention: attends}, "torch", "torch.sdpa"
    )
    a, b = torch.ones(A), torch.ones(B)
    for _ in range(4):  # what is kept for plain tensors is no excuse
        at(called, lambda: torch.einsum("ij,jk->ik", a, b), "torch")
    a = a.as_subclass(tensor_type(handled))
    for call in (
        lambda: torch.einsum("ij,jk->ik", a, b),
        lambda: torch.einsum("ij,jk->ik", [b.T, a.T]),
        lambda: torch.einsum(b.T, [0, 1], a.T, [1, 2]),
    ):
        assert at(called, call, "torch") == "squared"
    assert at(called, lambda: functional.scaled_dot_product_attention(a, a, a), "torch.sdpa") == "attends"


@pytest.mark.parametrize("called", TIMES)
@pytest.mark.parametrize("taken", TIMES)
def test_modes_see_the_function_that_callers_hold(taken: str, called: str) -> None:
    functions = lambda: (torch.einsum, functional.scaled_dot_product_attention)  # noqa: E731
    einsum, attention = at(taken, functions, "torch", "torch.sdpa")
    seen: list[bool] = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.extend((func is einsum, func is attention))
            assert func in (torch.einsum, functional.scaled_dot_product_attention)
            return func(*args, **(kwargs or {}))

    def call() -> None:
        a, b, cube, q = torch.ones(A), torch.ones(B), torch.ones(3, 3, 4), torch.ones(1, 2, 3, 8)
        for _ in range(4):
            einsum("ij,jk->ik", a, b)
            einsum("iij->j", cube)
        with Mode():
            for function in (einsum, torch.einsum):
                function("ij,jk->ik", a, b)
                function("iij->j", cube)
            for function in (attention, functional.scaled_dot_product_attention):
                function(q, q, q)

    at(called, call, "torch", "torch.sdpa")
    assert seen == [True, False] * 4 + [False, True] * 2


@pytest.mark.parametrize("pickled", TIMES)
@pytest.mark.parametrize("loaded", TIMES)
def test_pickles(pickled: str, loaded: str) -> None:
    functions = (np.einsum, torch.einsum)
    text = at(pickled, lambda: pickle.dumps(functions), "numpy", "torch")
    assert at(loaded, lambda: pickle.loads(text), "numpy", "torch") == functions


IMPORTED_WHILE_PATCHED = """
import torch, einops_fast
einops_fast.patch("torch", "torch.sdpa")
from torch import einsum
from torch.nn.functional import scaled_dot_product_attention as attention
a, q = torch.ones(3, 3), torch.ones(1, 1, 3, 8)
einsum("ij,jk->ik", a, a)
einops_fast.unpatch()
assert einsum is torch.einsum is torch.functional.einsum
assert attention is torch.nn.functional.scaled_dot_product_attention is torch._C._nn.scaled_dot_product_attention
compiled = torch.compile(lambda a, q: (einsum("ij,jk->ik", a, a), attention(q, q, q)), fullgraph=True, backend="eager")
for _ in range(2):
    torch.testing.assert_close(compiled(a, q), (a @ a, q))
    einops_fast.patch("torch", "torch.sdpa")
"""


def test_what_was_imported_while_patched_is_the_function_afterwards() -> None:
    run_python("-c", IMPORTED_WHILE_PATCHED)
