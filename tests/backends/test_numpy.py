"""On NumPy arrays, dtypes, casting, scalars, views and memory order are those of ``numpy.einsum``."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from equations import cases, operands
from hypothesis import given
from hypothesis import strategies as st

from einops_fast import OperandError, contract_expression, fast_einsum

DTYPES = [*"?bBhHiIlLefdgFDG"]
# One for each way that a dtype of the result comes about; the last two have operands without axes.
EQUATIONS = ["i,i->i", "i,i->", "ij,j->i", "i,i,i->i", ",i->i", "i,->i"]


def shapes_of(equation: str, size: int = 3) -> list[tuple[int, ...]]:
    return [(size,) * len(term) for term in equation.partition("->")[0].split(",")]


def outcome(call: Callable[[], Any]) -> Any:
    """The result, or the kind of the error: a refusal is ``TypeError`` or ``ValueError``, never both."""
    try:
        return call()
    except (TypeError, ValueError) as error:
        return TypeError if isinstance(error, TypeError) else ValueError


def check(equation: str, *arrays: Any, **options: Any) -> None:
    """The result has NumPy's type, dtype and values."""
    wanted, got = np.einsum(equation, *arrays, **options), fast_einsum(equation, *arrays, **options)
    assert (type(got), got.dtype) == (type(wanted), wanted.dtype)
    np.testing.assert_array_equal(got, wanted)


def check_outcome(call: Callable[[Callable[..., Any]], Any]) -> None:
    """What comes of a call of either einsum is the same result, or a refusal of the same kind."""
    wanted, got = (outcome(lambda einsum=einsum: call(einsum)) for einsum in (np.einsum, fast_einsum))
    if isinstance(wanted, type):
        assert got is wanted
    else:
        np.testing.assert_array_equal(got, wanted, strict=True)


# ---- dtypes


@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("first", DTYPES)
def test_dtype_of_any_two(first: str, equation: str) -> None:
    for second in DTYPES:
        arrays = [
            np.full(shape, at + 2).astype(dtype)
            for at, (shape, dtype) in enumerate(zip(shapes_of(equation), [first, second, first], strict=False))
        ]
        check(equation, *arrays)


@pytest.mark.parametrize(
    "value", [True, 3, 300, -1, 2.5, 1e300, 1 + 2j, np.int8(3), np.float32(3), np.array(7), np.array(0.5)]
)
@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "float16", "float32", "float64", "complex64"])
def test_dtype_beside_a_scalar(dtype: str, value: Any) -> None:
    for many in (3, 1 << 17):  # NumPy's loops, and steps of a plan
        array = np.ones(many, dtype)
        check(",i->i", value, array)
        check("i,i,->", array[:3], array[:3], value)


@pytest.mark.parametrize(
    "arrays",
    [
        ([[1, 2], [3, 4]], [[1], [2]]),
        ([[1, 2.5], [3, 4]], np.ones((2, 1), "float32")),
        (((1, 2), (3, 4)), [[True], [False]]),
        ([[1, 2], [3, 4j]], [[1], [2]]),
        (np.asmatrix([[1, 2], [3, 4]]), np.array([[1], [2]]).view(np.recarray)),
    ],
    ids=["int", "mixed", "tuples and bool", "complex", "subclasses"],
)
def test_operands_that_are_no_plain_arrays(arrays: Sequence[Any]) -> None:
    check("ij,jk->ik", *arrays)


@pytest.mark.parametrize("equation", ["ij->i", "ij,jk->ik", "ij,kj,jl->il"])
def test_integers_wrap_around(equation: str) -> None:
    arrays = [np.full(shape, 100, "int8") for shape in shapes_of(equation)]
    wanted = np.einsum(equation, *[array.astype("int64") for array in arrays]).astype("int8")
    assert (wanted != np.einsum(equation, *[array.astype("int64") for array in arrays])).all()
    np.testing.assert_array_equal(fast_einsum(equation, *arrays), wanted, strict=True)


@pytest.mark.parametrize(
    "equation", ["ij->ji", "ij->i", "ij,jk->ik", "ij,jk,kl->il", "ij,j->i", "ij,jk->ki", "aib,ibj->ai", "i,j->ij"]
)
@pytest.mark.parametrize("dtype", [">f4", ">f8", ">i4", "object", "longdouble"])
def test_dtypes_without_fast_paths(dtype: str, equation: str) -> None:
    check(equation, *(np.arange(3 ** len(shape)).reshape(shape).astype(dtype) for shape in shapes_of(equation)))


# ---- dtype=, casting=, out=, order=


@pytest.mark.parametrize("casting", ["no", "equiv", "safe", "same_kind", "unsafe"])
@pytest.mark.parametrize("dtype", [None, "int8", "int64", "float32", "float64", "complex128"])
@pytest.mark.parametrize("own", [("int8", "int8"), ("int64", "float32"), ("float64", "float32"), ("complex64",) * 2])
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")  # that casting='unsafe' drops imaginary parts
def test_dtype_and_casting(own: Sequence[str], dtype: str | None, casting: str) -> None:
    arrays = [np.full((3, 3), 2, each) for each in own]
    check_outcome(lambda einsum: einsum("ij,jk->ik", *arrays, dtype=dtype, casting=casting))


def test_dtype_and_order_hold_for_a_view_too() -> None:
    # numpy.einsum ignores them where it returns a view.
    assert fast_einsum("ij->ji", np.ones((2, 3), "float32"), dtype="float64").dtype == np.float64
    assert fast_einsum("ij->ji", np.ones((2, 3)), order="C").flags.c_contiguous


@pytest.mark.parametrize("casting", ["no", "safe", "same_kind", "unsafe"])
@pytest.mark.parametrize("own", ["int8", "int64", "float32", "float64"])
@pytest.mark.parametrize("dtype", ["int8", "int64", "float32", "float64", "complex64"])
@pytest.mark.parametrize("equation", ["ij->i", "ij->ji", "ij,jk->ik"])
def test_out(equation: str, dtype: str, own: str, casting: str) -> None:
    """What is written to ``out``, and in what dtype it was computed: the wider one of the operands' and out's."""
    arrays = [np.full(shape, 100, own) for shape in shapes_of(equation)]

    def call(einsum: Callable[..., Any]) -> Any:
        out = np.zeros((3,) * (len(equation) - equation.index(">") - 1), dtype)
        result = einsum(equation, *arrays, out=out, casting=casting)
        assert result is out
        return result

    check_outcome(call)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("kind", [np.memmap, np.matrix, np.recarray])
def test_out_of_a_subclass(kind: Any, tmp_path: Path) -> None:
    a, b = np.ones((20, 30)), np.ones((30, 40))
    calls = (
        lambda out: fast_einsum("ij,jk->ik", a, b, out=out),
        lambda out: fast_einsum("ij,jk->ik", a, b, out=out, i=20),
        lambda out: contract_expression("ij,jk->ik", a.shape, b.shape)(a, b, out=out),
    )
    for call in calls:
        plain = (
            np.memmap(tmp_path / "out", "float64", "w+", shape=(20, 40)) if kind is np.memmap else np.zeros((20, 40))
        )
        out = plain.view(kind)
        assert call(out) is out
        assert (plain == 30).all()
    with pytest.raises(OperandError, match="out is of type MaskedArray, but the operands are numpy arrays"):
        fast_einsum("ij,jk->ik", a, b, out=np.ma.zeros((20, 40)))


# ---- scalars and views


@pytest.mark.parametrize("options", [{}, {"order": "C"}, {"dtype": "complex128"}])
@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "bool"])
@pytest.mark.parametrize("equation", ["->", ",->", "i->", "ii->", "i,i->", "ij,jk,ki->", ",i,i->"])
def test_results_without_axes_are_scalars(equation: str, dtype: str, options: dict[str, Any]) -> None:
    arrays = [np.ones(shape, dtype) for shape in shapes_of(equation)]
    wanted, got = np.einsum(equation, *arrays, **options), fast_einsum(equation, *arrays, **options)
    assert type(got) is (type(wanted) if equation != "->" else np.dtype(options.get("dtype", dtype)).type)
    assert got == wanted


@pytest.mark.parametrize("equation", ["i,jk,l->", "i,j->", "i,i->", "i,i,j,j->", ",,->"])
def test_objects_stay_objects(equation: str) -> None:
    """Sums of them without axes aren't taken for numbers of the machine."""
    arrays = [np.full(shape, 10**10 + 7, object) for shape in shapes_of(equation, 2)]
    found, wanted = fast_einsum(equation, *arrays), np.einsum(equation, *arrays)
    assert (type(found), found) == (int, wanted)


@given(data=st.data(), dtype=st.sampled_from(["float16", "float64", "int8"]), read_only=st.booleans())
def test_views_where_numpy_returns_views(data: st.DataObject, dtype: str, read_only: bool) -> None:
    case = data.draw(cases(max_operands=1))
    (array,) = data.draw(operands(case.shapes, dtype=dtype))
    if read_only:
        array.flags.writeable = False
    wanted, got = np.einsum(case.letters, array), fast_einsum(case.equation, array)
    assert np.shares_memory(got, array) == np.shares_memory(wanted, array)
    if np.shares_memory(wanted, array):
        assert got.__array_interface__ == wanted.__array_interface__  # address, strides, read-only flag


@given(data=st.data())
def test_other_results_are_new_memory(data: st.DataObject) -> None:
    """Memory that is no operand's, and in which every element has its own place."""
    case = data.draw(cases().filter(lambda case: len(case.shapes) > 1))
    arrays = data.draw(operands(case.shapes))
    got = fast_einsum(case.equation, *arrays)
    assert not any(np.may_share_memory(got, array) for array in arrays)
    if got.ndim and got.size:
        assert got.flags.writeable
        assert all(stride or size < 2 for stride, size in zip(got.strides, got.shape, strict=True))


# ---- unusual memory


def test_elements_that_overlap() -> None:
    # The stride is smaller than an element, but it isn't zero.
    values = np.arange(4.0)
    overlapping = np.ndarray(3, "complex128", values, strides=(8,))
    np.testing.assert_array_equal(overlapping, [0 + 1j, 1 + 2j, 2 + 3j])
    for equation in ("i,i->", "i,i->i", "i,i,i->"):
        check(equation, *[overlapping] * len(shapes_of(equation)))


def test_no_floating_point_warnings() -> None:
    """einsum never warns, so inf times 0 passes even where NumPy is told to raise."""
    a, b = np.array([[np.inf, 1.0]]), np.zeros((2, 1))
    with np.errstate(all="raise"):
        assert np.isnan(fast_einsum("ij,jk->ik", a, b)).all()
        assert np.isnan(fast_einsum("ij,ji->ij", a, b)[0, 0])
        assert np.isinf(fast_einsum("i,i->i", *[np.full(1, 300, "float16")] * 2)).all()
        long = np.ones(30001, "float32")
        long[7], long[30000] = np.inf, -np.inf
        for _ in range(2):
            assert np.isnan(fast_einsum("i,i->", long, np.ones_like(long)))


# ---- long sums


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("i,i->", [(16384,), (16384,)]),
        ("i,i->", [(30001,), (30001,)]),
        ("i,i->", [(3000001,), (3000001,)]),
        ("bi,bi->b", [(3, 9000), (3, 9000)]),
        ("abi,bi->ab", [(2, 3, 8200), (3, 8200)]),
        ("bij,bji->b", [(2, 100, 90), (2, 90, 100)]),
        ("ij,ij->", [(128, 256), (128, 256)]),
    ],
)
def test_long_dot_products_hardly_round_off(equation: str, shapes: list[tuple[int, ...]], dtype: str) -> None:
    rng = np.random.default_rng(0)
    # All of one sign: the sum grows, and with it what each addition loses.
    arrays = [(rng.random(shape) / 8).astype(dtype) for shape in shapes]
    exact = np.einsum(equation, *[array.astype("float64") for array in arrays])

    def error(got: Any) -> float:
        assert (got.dtype, got.shape) == (dtype, exact.shape)
        return float(np.abs(got - exact).max())

    rounding = float(np.finfo(dtype).eps * np.abs(exact).max())
    bound = 2 * rounding if equation == "i,i->" else max(2 * rounding, error(np.einsum(equation, *arrays)))
    for _ in range(2):  # the second call has a plan
        assert error(fast_einsum(equation, *arrays)) <= bound
    strided = [np.repeat(array, 2, axis=-1)[..., ::2] for array in arrays]
    assert error(fast_einsum(equation, *strided)) <= max(error(np.einsum(equation, *strided)), rounding)
