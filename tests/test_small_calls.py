"""Small calls of a patched numpy.einsum go to NumPy's loops at once, with the same results, errors and observers."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from einops_fast import patched, profile, small_calls
from einops_fast.plan_cache import clear_plans, compiled

A, B = np.arange(4.0).reshape(2, 2), np.arange(6.0).reshape(2, 3)
V = np.arange(1024.0)
CALLS = {
    "matrices": ("ij,jk->ik", A, B),
    "implicit": ("ij, jk", A, B),
    "dot product": ("i,i->", V, V),
    "trace": ("ii->", A),
    "view": ("ij->ji", B),
    "ellipsis": ("...i,ij->...j", A, B),
    "three operands": ("ij,ixy,ji->xy", A, np.ones((2, 3, 3)), A),
    "lists": (A, [0, 1], B, [1, 2], [0, 2]),
    "lists without an output": (A, [0, 1], B, [1, 2]),
    "one list": (A, [0, 0]),
}
BAD: list[tuple[Any, ...]] = [
    (),
    ("ij",),
    ("ij,jk", A),
    ("ij,jk", A, V),
    ("ij,jk->iz", A, B),
    ("ij;jk", A, B),
    ("->", A),
    ("", A),
    ("ij", A, B),
    (A, [0, 1], B),
    (A, [0, 1], B, [1, 99]),
]


@pytest.fixture
def plans() -> Any:
    """The plans that were made since the test began."""
    clear_plans()
    return compiled


@pytest.mark.parametrize("options", [{}, {"out": None}, {"optimize": False}, {"order": "C"}, {"dtype": "f8"}], ids=str)
@pytest.mark.parametrize("operands", CALLS.values(), ids=CALLS)
def test_no_plan_is_made(operands: Any, options: dict[str, Any], plans: Any) -> None:
    expected = np.einsum(*operands, **options)
    with patched("numpy"):
        result = np.einsum(*operands, **options)
        assert not plans
    np.testing.assert_array_equal(result, expected)
    assert type(result) is type(expected)
    assert result.strides == expected.strides
    assert np.may_share_memory(result, operands[1] if isinstance(operands[0], str) else A) == np.may_share_memory(
        expected, operands[1] if isinstance(operands[0], str) else A
    )


@pytest.mark.parametrize("options", [{}, {"optimize": False}], ids=str)
def test_out_is_filled(options: dict[str, Any], plans: Any) -> None:
    out = np.empty((3, 2)).T
    with patched("numpy"):
        assert np.einsum("ij,jk->ik", A, B, out=out, **options) is out
        assert not plans
    np.testing.assert_array_equal(out, A @ B)


@pytest.mark.parametrize("options", [{}, {"optimize": False}, {"nonsense": 1}, {"out": B}], ids=str)
@pytest.mark.parametrize("operands", BAD, ids=str)
def test_errors_are_native(operands: Any, options: dict[str, Any]) -> None:
    with pytest.raises(Exception) as expected:  # noqa: PT011
        np.einsum(*operands, **options)
    with patched("numpy"), pytest.raises(expected.type) as error:
        np.einsum(*operands, **options)
    assert str(error.value) == str(expected.value)


@pytest.mark.parametrize("operands", [CALLS["matrices"], CALLS["lists"]], ids=["equation", "lists"])
def test_observers_see_each_call(operands: Any) -> None:
    with patched("numpy"):
        np.einsum(*operands)
        with profile() as seen:
            np.einsum(*operands)
            np.einsum(*operands)
        assert sum(row.calls for row in seen.rows) == 2


@pytest.mark.parametrize(
    "operands",
    [
        ("ij,jk->ik", np.ones((64, 64)), np.ones((64, 64))),
        ("i,i->", np.ones(1 << 20), np.ones(1 << 20)),
        ("ij,jk,kl,lm,mn,no->io", *[A] * 6),
        (np.ones((64, 64)), [0, 1], np.ones((64, 64)), [1, 2]),
    ],
    ids=lambda operands: operands[0] if isinstance(operands[0], str) else "lists",
)
def test_others_are_planned(operands: Any, plans: Any) -> None:
    assert not small_calls.loops_suffice(operands)
    with patched("numpy"):
        np.einsum(*operands, optimize=True)
        np.einsum(*operands)
    assert plans


def test_signature_and_dispatcher_come_back() -> None:
    module = inspect.getmodule(inspect.unwrap(np.einsum))
    functions = inspect.unwrap(np.einsum), module._einsum_dispatcher  # type: ignore[union-attr]
    before = [(function.__code__, inspect.signature(function)) for function in functions]
    with patched("numpy"):
        assert [inspect.signature(function) for function in functions] == [signature for _, signature in before]
    assert [(function.__code__, inspect.signature(function)) for function in functions] == before
