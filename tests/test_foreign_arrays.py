"""Arrays that no backend owns: functions are dispatched to them as NumPy does it, or the call is refused."""

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from einops_fast import OperandError, attention, contract_expression, explain, fast_einsum, ops, patched

VALUES = np.arange(4.0).reshape(2, 2)


class Labelled:
    """Becomes a NumPy array wherever one asks for it, as those of xarray, pandas and JAX do."""

    shape, ndim, dtype, strides = VALUES.shape, VALUES.ndim, VALUES.dtype, VALUES.strides

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return VALUES


class Interface:
    __array_interface__ = VALUES.__array_interface__


class Unitful(np.ndarray):
    """Units in ``__array_ufunc__`` alone: einsum itself would lose them."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return NotImplemented


class Recorder:
    """Answers with what it was asked for."""

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        return function.__name__, arguments, options


class Quantity(Recorder):
    shape, ndim = (2, 2), 2


class QuantityArray(np.ndarray):
    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        return function.__name__, arguments, options


FOREIGN = {
    "labelled": Labelled,
    "interface": Interface,
    "ufuncs": lambda: VALUES.view(Unitful),
    "masked": lambda: np.ma.masked_array(VALUES, VALUES > 2),
}
DISPATCHED = {"plain": Quantity, "subclass": lambda: VALUES.view(QuantityArray)}


@pytest.fixture(params=FOREIGN.values(), ids=FOREIGN)
def foreign(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.fixture(params=DISPATCHED.values(), ids=DISPATCHED)
def quantity(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: fast_einsum("ij,jk->ik", VALUES, x), "operand 1"),
        (lambda x: fast_einsum(x, ["row", "column"]), "operand 0"),
        (lambda x: fast_einsum("ij,jk->ik", [VALUES, x]), "operand 1"),
        (lambda x: fast_einsum("nij->ij", [[x], [x]]), "operand 0 is a list of"),
        (lambda x: contract_expression("ij,jk->ik", (2, 2), (2, 2))(VALUES, x), "operand 1"),
        (lambda x: contract_expression("ij,jk->ik", (2, 2), x, constants=[1]), "operand 0"),
        (lambda x: explain("ij,jk->ik", x, VALUES), "operand 0"),
        (lambda x: ops.softmax(x, -1), "the input"),
        (lambda x: attention("i d, j d -> i d", x, VALUES, VALUES), "q"),
        (lambda x: attention("i d, j d -> i d", VALUES, VALUES, VALUES, mask=("i j", x)), "mask"),
    ],
)
def test_refused_by_name_and_type(call: Callable[[Any], Any], name: str, foreign: Any) -> None:
    for _ in range(2):
        with pytest.raises(OperandError, match=rf"^{name}.*{type(foreign).__name__}.*numpy\.asarray"):
            call(foreign)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: fast_einsum("ij,jk->ik", VALUES, x), "operand 1"),
        (lambda x: fast_einsum(x, ["row", "column"]), "operand 0"),
        (lambda x: contract_expression("ij,jk->ik", (2, 2), (2, 2))(VALUES, x), "operand 1"),
        (lambda x: explain("ij,jk->ik", x, VALUES), "operand 0"),
        (lambda x: ops.softmax(x, -1), "the input"),
        (lambda x: attention("i d, j d -> i d", VALUES, x, VALUES), "k"),
        (lambda x: attention("i d, j d -> i d", VALUES, VALUES, VALUES, mask=("i j", x)), "mask"),
    ],
)
def test_lists_of_unlike_lengths_are_refused_by_name(call: Callable[[Any], Any], name: str) -> None:
    for _ in range(2):
        with pytest.raises(OperandError, match=rf"^{name} is a list that is no array: .*inhomogeneous shape"):
            call([[1, 2], [3]])


def test_out_is_refused(foreign: Any) -> None:
    with pytest.raises(OperandError, match="out is of type"):
        fast_einsum("ij,jk->ik", VALUES, VALUES, out=foreign)


@pytest.mark.parametrize("equation", ["ij,jk->ik", "ij,jk", "i j, j k -> k i"])
def test_dispatched_as_numpy_does_it(equation: str, quantity: Any) -> None:
    wanted = "einsum", (equation, quantity, VALUES), {}
    for einsum in (np.einsum, fast_einsum):
        assert einsum(equation, quantity, VALUES) == wanted
    with patched("numpy"):
        assert np.einsum(equation, quantity, VALUES) == wanted
        assert np.einsum("ij,jk->ik", VALUES, VALUES, out=quantity)[2] == {"out": quantity}
    assert fast_einsum("ij,jk->ik", VALUES, VALUES, out=quantity)[2] == {"out": quantity}
    assert fast_einsum("i,i->", Recorder(), Recorder())[0] == "einsum"


def test_dispatched_in_letters(quantity: Any) -> None:
    for arguments in [
        ("row mid, mid column -> row column", quantity, quantity),
        (quantity, ["row", "mid"], quantity, ["mid", "column"], ["row", "column"]),
        ("row mid, mid column -> row column", [quantity, quantity]),
    ]:
        name, (equation, *operands), options = fast_einsum(*arguments)
        assert (name, equation.replace(" ", ""), options) == ("einsum", "rm,mc->rc", {})
        assert operands[0] is operands[1] is quantity


def test_a_number_is_dispatched_without_asking_for_its_axes() -> None:
    class Number(Recorder):
        ndim = 0

    for operands in ((Number(), VALUES), (Number(), Number())):
        equation = ",ij->ij" if operands[1] is VALUES else ",->"
        assert fast_einsum(equation, *operands)[:2] == ("einsum", (equation, *operands))


def test_dispatched_with_options(quantity: Any) -> None:
    given = {"dtype": np.dtype("float64"), "order": "C", "casting": "unsafe", "optimize": "greedy"}
    assert fast_einsum("ij->i", quantity, **given)[2] == given  # type: ignore[arg-type]
    assert fast_einsum("ij->i", quantity, optimize=[(0,)])[2] == {"optimize": ["einsum_path", (0,)]}


@pytest.mark.parametrize("constants", [(), (1,)])
def test_expressions_dispatch(constants: tuple[int, ...], quantity: Any) -> None:
    held = quantity if constants else (2, 2)
    expression = contract_expression("ij,jk->ik", (2, 2), held, constants=constants)
    assert expression(*([VALUES, quantity][: 2 - len(constants)]))[0] == "einsum"


def test_units_of_pint() -> None:
    metre = pytest.importorskip("pint").UnitRegistry().metre
    found = fast_einsum("row mid, mid column -> row column", VALUES * metre, VALUES * metre)
    assert found.units == metre**2
    np.testing.assert_array_equal(found.magnitude, VALUES @ VALUES)


def test_labels_of_xarray() -> None:
    xarray = pytest.importorskip("xarray")
    with pytest.raises(OperandError, match=r"operand 0 .*DataArray"):
        fast_einsum("ij->i", xarray.DataArray(VALUES))


@pytest.mark.parametrize("value", [[1.0, 2.0], (1, 2), range(2), array("d", [1, 2]), memoryview(array("d", [1, 2]))])
def test_values_that_are_no_arrays(value: Any) -> None:
    np.testing.assert_array_equal(fast_einsum("i,->i", value, 2), np.einsum("i,->i", value, 2))


@pytest.mark.parametrize("make", [np.asmatrix, lambda a: a.view(np.recarray), lambda a: a.view(np.memmap)])
def test_subclasses_that_only_add_methods(make: Callable[[Any], Any]) -> None:
    found = fast_einsum("ij,jk->ik", make(VALUES), VALUES)
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, VALUES @ VALUES)
