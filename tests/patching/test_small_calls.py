"""Small calls of a patched numpy.einsum, and of fast_einsum, go to NumPy's loops at once.

Results, errors and observers are the same.
"""

from typing import Any

import numpy as np
import pytest

from einops_fast import EinsumError, ShapeError, SubscriptsError, fast_einsum, patched, profile
from einops_fast.patching import small_calls
from einops_fast.runtime.plan_cache import clear_plans, compiled

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
    "chain": ("ij,jk,kl,lm,mn,no->io", *[A] * 6),
    "lists": (A, [0, 1], B, [1, 2], [0, 2]),
    "lists of three": (A, [0, 1], A, [1, 2], A, [2, 3]),
    "lists without an output": (A, [0, 1], B, [1, 2]),
    "one list": (A, [0, 0]),
}


@pytest.fixture
def plans() -> Any:
    """The plans that were made since the test began."""
    clear_plans()
    return compiled


@pytest.mark.parametrize(
    "options",
    [{}, {"out": None}, {"optimize": False}, {"optimize": True}, {"order": "C"}, {"dtype": "f8"}],
    ids=str,
)
@pytest.mark.parametrize("operands", CALLS.values(), ids=CALLS)
def test_no_plan_is_made(operands: Any, options: dict[str, Any], plans: Any) -> None:
    # With optimize=True, NumPy lays some results out in another order, and gives others as arrays without axes.
    expected = np.einsum(*operands, **{name: options[name] for name in options if name != "optimize"})
    with patched("numpy"):
        result = np.einsum(*operands, **options)
        assert not plans
    np.testing.assert_array_equal(result, expected)
    assert type(result) is type(expected)
    assert result.strides == expected.strides
    first = operands[1] if isinstance(operands[0], str) else operands[0]
    assert np.may_share_memory(result, first) == np.may_share_memory(expected, first)


DTYPES = [
    ("f8", "f8"),
    ("f4", "f4"),
    ("c16", "c16"),
    ("f8", "f4"),
    ("f4", "c8"),
    ("c8", "i4"),
    ("i4", "i8"),
    ("?", "f8"),
]


@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
@pytest.mark.parametrize("call", ["matrices", "three operands", "lists", "lists of three"])
def test_dtypes_of_small_calls(call: str, dtypes: tuple[str, str], plans: Any) -> None:
    arrays = iter([np.dtype(dtype) for dtype in dtypes * 2])
    operands = [each.astype(next(arrays)) if isinstance(each, np.ndarray) else each for each in CALLS[call]]
    wanted = np.einsum(*operands)
    with patched("numpy"):
        for einsum in (fast_einsum, np.einsum):
            for _ in range(2):
                result = einsum(*operands)
            np.testing.assert_array_equal(result, wanted, strict=True)


OUTS = {"array": np.empty((2, 3)), "turned": np.empty((3, 2)).T, "other dtype": np.empty((2, 3), "f4"),
        "other shape": np.empty((3, 2)), "broadcast": np.empty((1, 2, 3)), "list": [[0.0]]}  # fmt: skip


@pytest.mark.parametrize("out", OUTS.values(), ids=OUTS)
@pytest.mark.parametrize("lists", [False, True])
def test_out_of_small_calls_of_fast_einsum(lists: bool, out: Any, plans: Any) -> None:
    operands = CALLS["lists" if lists else "matrices"]
    results = []
    for known in (False, True):  # whether the loops are known
        if known:
            fast_einsum(*operands)
            plans.clear()
        try:
            results.append(fast_einsum(*operands, out=out))
        except ValueError as error:
            results.append(str(error))
        assert not (known and plans and getattr(out, "shape", ()) == (2, 3) and out.dtype == "f8")
    if isinstance(results[0], str):
        assert results[0] == results[1]
    else:
        assert all(each is out for each in results)
        np.testing.assert_array_equal(out, A @ B)


def test_out_may_be_an_operand() -> None:
    for _ in range(2):
        own = A.copy()
        np.testing.assert_array_equal(fast_einsum("ij,jk->ik", own, A, out=own), A @ A)


@pytest.mark.parametrize("einsum", [np.einsum, fast_einsum], ids=["patched", "own"])
@pytest.mark.parametrize("operands", [CALLS["matrices"], CALLS["lists"]], ids=["equation", "lists"])
def test_observers_see_each_call(operands: Any, einsum: Any) -> None:
    with patched("numpy"):
        einsum(*operands)
        einsum(*operands)
        with profile() as seen:
            einsum(*operands)
            einsum(*operands)
        assert sum(row.calls for row in seen.rows) == 2


@pytest.mark.parametrize(
    "operands",
    [
        ("ij,jk->ik", np.ones((64, 64)), np.ones((64, 64))),
        ("i,i->", np.ones(1 << 20), np.ones(1 << 20)),
        ("ij,jk,kl,lm,mn,no->io", *[np.ones((6, 6))] * 6),
        (np.ones((8, 8)), [0, 1], np.ones((8, 8)), [1, 2], np.ones((8, 8)), [2, 3]),
        ("ij,jk,kl,lm->im", A, A, A, A.astype(complex)),
        ("ij,njk->nik", A, np.ones((1000, 2, 2))),
        ("ij,jk->ik", np.ones((12, 12), complex), np.ones((12, 12))),
        ("ij,jk->ik", np.ones((1000, 4)), np.ones((4, 4))),
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


STACK = ("nij,nj->ni", np.ones((1000, 4, 4)), np.ones((1000, 4)))


@pytest.mark.parametrize(
    "options", [{"order": "F"}, {"optimize": "greedy"}, {"casting": "no", "optimize": True}], ids=str
)
def test_the_loops_take_the_other_options(options: dict[str, Any]) -> None:
    wanted = np.einsum(*STACK, **options)
    with patched("numpy"):
        for _ in range(2):
            result = np.einsum(*STACK, **options)
            np.testing.assert_array_equal(result, wanted)
            assert result.strides == wanted.strides


@pytest.mark.parametrize("options", [{}, {"out": None}, {"optimize": False}, {"optimize": True}], ids=str)
@pytest.mark.parametrize("operands", CALLS.values(), ids=CALLS)
def test_small_calls_of_fast_einsum_are_the_loops_from_the_second_on(
    operands: Any, options: dict[str, Any], plans: Any
) -> None:
    wanted = fast_einsum(*operands, **options)
    assert plans
    plans.clear()
    result = fast_einsum(*operands, **options)
    assert not plans
    np.testing.assert_array_equal(result, wanted, strict=True)
    first = operands[isinstance(operands[0], str)]
    assert np.shares_memory(result, first) == np.shares_memory(wanted, first)


@pytest.mark.parametrize(
    "operands",
    [
        ("ij,jk->ik", A.tolist(), B),
        (A, [0, 1], B.tolist(), [1, 2]),
        (A, ["row", "in"], B, ["in", "column"]),
        ("ij,jk->ik", A, B.view(np.recarray)),
        ("ij,jk->ik", A, np.ones((99, 99))[:2]),
        ("batch row, row column -> batch column", A, B),
    ],
    ids=["list", "list with labels", "labels of words", "subclass", "large", "words"],
)
def test_other_calls_of_fast_einsum_are_planned(operands: Any, plans: Any) -> None:
    fast_einsum("ij,jk->ik", A, B)
    fast_einsum(A, [0, 1], B, [1, 2])
    wanted = fast_einsum(*operands)
    plans.clear()
    result = fast_einsum(*operands)
    assert type(result) is np.ndarray
    np.testing.assert_array_equal(result, wanted, strict=True)


def test_errors_of_small_calls_stay_ours() -> None:
    for _ in range(2):
        fast_einsum("ij,jk->ik", A, B)
        with pytest.raises(ShapeError, match="j"):
            fast_einsum("ij,jk->ik", B, B)
        with pytest.raises(SubscriptsError):
            fast_einsum("ij,jk->ik")
        with pytest.raises(SubscriptsError):
            fast_einsum("ij,jk->ik", B)
        with pytest.raises(SubscriptsError):
            fast_einsum("ij,jk->ik", A, B, B)
        with pytest.raises(EinsumError, match="optimize"):
            fast_einsum("ij,jk->ik", A, B, optimize="quickly")
        with pytest.raises(TypeError, match="optimise"):
            fast_einsum("ij,jk->ik", A, B, optimise=True)


@pytest.mark.parametrize("size", [4, 300])
@pytest.mark.parametrize("equation", ["...i->i", "...->", "...,...->", "...i,...i->i", "i...,i...->i"])
def test_ellipses_that_are_summed(equation: str, size: int) -> None:
    """NumPy takes them where it chooses an order of contraction, and only there."""
    operands = [np.random.rand(3, size)] * (equation.count(",") + 1)
    wanted = np.einsum(equation, *operands, optimize=True)
    with patched("numpy"):
        np.testing.assert_allclose(np.einsum(equation, *operands, optimize=True), wanted)
        with pytest.raises(ValueError, match="more dimensions than subscripts"):
            np.einsum(equation, *operands)


@pytest.mark.parametrize("options", [{}, {"optimize": False}, {"optimize": True}, {"order": "C"}], ids=str)
@pytest.mark.parametrize("shape", [(0, 1), (0, 3), (2, 0), (0, 2, 0), (0, 0, 2)], ids=str)
@pytest.mark.parametrize("lists", [False, True])
def test_labels_with_two_sizes_are_refused_in_empty_arrays(
    lists: bool, shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    """NumPy takes the diagonal of an empty array for as long as its longest axis, and reads what isn't there."""
    right, wrong = [np.zeros(each) for each in ((2,) * len(shape), shape)]
    labels = [0] * len(shape)
    form = (lambda array: (array, labels, [0])) if lists else (lambda array: ("i" * len(shape) + "->i", array))
    for array in (right, wrong, wrong, right):  # the first call, and those that find plans or rules
        for einsum in (fast_einsum, np.einsum):
            with patched("numpy"):
                if array is right:
                    assert einsum(*form(array), **options).shape == (2,)
                else:
                    with pytest.raises(ShapeError, match="operand 0"):
                        einsum(*form(array), **options)


@pytest.mark.parametrize("equation", ["ij,jk->ik", "ij,jk->ki", "ij,ij->ij", "ij,ij->", "ij,kl->ijkl"])
@pytest.mark.parametrize("dtype", ["float32", "int64", "complex64"])
@pytest.mark.parametrize(
    "options",
    [
        {"order": "C"},
        {"order": "F"},
        {"dtype": "float64"},
        {"dtype": np.float64, "order": "C"},
        {"dtype": None},
        {"dtype": ">f8"},
        {"dtype": complex},
    ],
)
def test_order_and_dtype_of_small_calls_are_those_of_numpy(equation, dtype, options):
    numbers = np.random.default_rng(0)
    arrays = [numbers.integers(-9, 9, (3, 3)).astype(dtype) for _ in range(2)]
    fast_einsum(equation, *arrays)
    if options.get("dtype") in ("float64", np.float64, ">f8") and dtype == "complex64":
        with pytest.raises(EinsumError):
            fast_einsum(equation, *arrays, **options)
        return
    swapped = options.get("dtype") == ">f8"  # NumPy's own loops return garbage for it
    expected = np.einsum(equation, *arrays, **(options | {"dtype": "f8"} if swapped else options))
    for _ in range(3):
        result = fast_einsum(equation, *arrays, **options)
        np.testing.assert_array_equal(result, expected)
        assert np.result_type(result) == np.result_type(expected)
        if options.get("order") == "C":
            assert np.asarray(result).flags.c_contiguous
        if options.get("order") == "F":
            assert np.asarray(result).flags.f_contiguous


def test_small_calls_with_order_and_dtype_have_no_plans():
    arrays = np.ones((3, 3)), np.ones((3, 3))
    fast_einsum("ij,jk->ik", *arrays)
    fast_einsum("ij->ji", arrays[0])
    compiled.clear()
    out = np.empty((3, 3))
    for options in ({"order": "C"}, {"dtype": float}, {"dtype": "float64", "order": "F"}, {"order": "C", "out": out}):
        fast_einsum("ij,jk->ik", *arrays, **options)
    assert not compiled
    assert out.tolist() == [[3.0] * 3] * 3
    assert fast_einsum("ij->ji", arrays[0], order="C").flags.c_contiguous  # a view of it isn't
    assert compiled


@pytest.mark.parametrize("options", [{"dtype": "int64"}, {"dtype": ["float64"]}, {"dtype": "text"}, {"order": "Z"}])
def test_options_that_do_not_fit_small_calls_are_refused_as_for_large_ones(options):
    errors = []
    for size in (3, 300):
        arrays = np.ones((size, size)), np.ones((size, size))
        fast_einsum("ij,jk->ik", *arrays)
        with pytest.raises(Exception) as caught:  # noqa: PT011
            fast_einsum("ij,jk->ik", *arrays, **options)
        errors.append((caught.type, str(caught.value)))
    assert errors[0] == errors[1]
