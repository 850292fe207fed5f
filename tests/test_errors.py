"""Errors name what is wrong and where, and are of the classes that callers of any framework's einsum expect."""

import re
from typing import Any

import numpy as np
import pytest

from einops_fast import EinsumError, OperandError, ShapeError, SubscriptsError, contract_expression, fast_einsum

A = np.ones((2, 3))
V = np.ones(3)


def error_of(*args: Any, **options: Any) -> EinsumError:
    """The error of a call, after checking that it is the same at the second call, when there may be a plan."""
    errors = []
    for _ in range(2):
        with pytest.raises(EinsumError) as caught:
            fast_einsum(*args, **options)
        errors.append(caught.value)
    first, second = errors
    assert (type(first), str(first)) == (type(second), str(second))
    return first


@pytest.mark.parametrize("kind", [EinsumError, SubscriptsError, ShapeError, OperandError])
def test_classes(kind: type[EinsumError]) -> None:
    """NumPy and MXNet raise ValueError, torch RuntimeError; for operands of a wrong type all raise TypeError."""
    assert issubclass(kind, ValueError)
    assert issubclass(kind, RuntimeError)
    assert issubclass(kind, TypeError) == (kind is OperandError)


WRONG: list[tuple[type[EinsumError], str, tuple[Any, ...], dict[str, Any]]] = [
    (SubscriptsError, "needs an equation and operands, or operands and lists of labels", (), {}),
    (SubscriptsError, "equation 'ij->i' has no operands", ("ij->i",), {}),
    (SubscriptsError, "2 terms for 1 operand", ("ij,jk", A), {}),
    (SubscriptsError, "output has axis 'column', which no operand has", ("row col -> column", A), {}),
    (SubscriptsError, "axes can't be grouped", ("(ij)", A), {}),
    (SubscriptsError, "what follows operand 1 is of type ndarray", (A, [0, 1], A), {}),
    (SubscriptsError, "what follows operand 0 is of type str", (A, "ij"), {}),
    (ShapeError, "operand 1 has 1 axis ... names 2", ("ij,jk->ik", A, V), {}),
    (
        ShapeError,
        "axis 'j' has size 2 in operand 1 (axis 0 of shape (2, 3)) ... size 3 in operand 0",
        ("ij,jk->ik", A, A),
        {},
    ),
    (ShapeError, "axis '1' has size 2 in operand 1 ... size 3 in operand 0", (A, [0, 1], A, [1, 2]), {}),
    (OperandError, "operand 1 is of type object: no backend knows it", ("i,i->", V, object()), {}),
    (OperandError, "operand 0 is of type NoneType: no backend knows it", ("i->", None), {}),
    (OperandError, "out has shape (3,), the result (2,)", ("ij->i", A), {"out": np.zeros(3)}),
    (OperandError, "out is of type list, but the operands are numpy arrays", ("ij->i", A), {"out": [0.0, 0.0]}),
    (OperandError, "casting='safe' doesn't convert float64 to out's int64", ("ij->i", A), {"out": np.zeros(2, int)}),
    (
        OperandError,
        "operand 0 has dtype float64, which casting='safe' doesn't convert to int8",
        ("ij->i", A),
        {"dtype": "int8"},
    ),
    (OperandError, "operand 0 has dtype float64", ("ij->i", A), {"dtype": "float32", "casting": "no"}),
    (OperandError, "order is one of 'C', 'F', 'A', 'K', not 'X'", ("ij->i", A), {"order": "X"}),
    (OperandError, "'same_kind', 'unsafe', not 'X'", ("ij->i", A), {"casting": "X"}),
]
"""The class, parts of the message, and the call."""


@pytest.mark.parametrize(("kind", "words", "args", "options"), WRONG, ids=[case[1] for case in WRONG])
def test_wrong_calls(kind: type[EinsumError], words: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    error = error_of(*args, **options)
    assert type(error) is kind
    assert all(part in str(error) for part in words.split(" ... "))


@pytest.mark.parametrize(
    "optimize",
    [
        "quickest",
        3.5,
        {},
        [0, 1],
        ("greedy", "much"),
        ("quickest", 10),
        ("greedy",),
        [(0, 1), (0, 5)],
        [(-1, 0)],
        [(0, 0)],
        [()],
        [("a", "b")],
        pytest.param(object(), id="object"),
        int,
    ],
    ids=str,
)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_no_order_of_contraction(optimize: Any, count: int) -> None:
    if optimize is int and count < 3:
        pytest.skip("only a call tells that this is no optimizer")
    equation = ",".join(["i"] * count) + "->"
    for options in ({}, {"i": len(V)}):
        error = error_of(equation, *[V] * count, optimize=optimize, **options)
        assert type(error) is EinsumError
        assert str(error).startswith("optimize=")
    with pytest.raises(EinsumError, match=r"^optimize="):
        contract_expression(equation, *[V.shape] * count, optimize=optimize)(*[V] * count)


@pytest.mark.parametrize("optimize", [np.True_, np.False_, 1, 0])
def test_what_is_equal_to_a_bool_is_one_to_choose_an_order_by(optimize: Any) -> None:
    for count in (1, 2, 3):
        assert fast_einsum(",".join(["i"] * count) + "->", *[V] * count, optimize=optimize) == sum(V**count)


@pytest.mark.parametrize("constants", [1, [1.5], ["b"], pytest.param(object(), id="object")], ids=str)
def test_constants_that_are_no_numbers_of_operands(constants: Any) -> None:
    with pytest.raises(OperandError, match=r"constants=.* isn't a list of numbers of operands, such as \[1\]"):
        contract_expression("ij,jk->ik", (2, 3), np.ones((3, 4)), constants=constants)


def test_dtype_that_does_not_exist_is_an_error_of_numpy() -> None:
    with pytest.raises(TypeError, match="data type 'float23' not understood"):
        fast_einsum("ij->i", A, dtype="float23")


# ---- torch


def test_operands_of_two_frameworks(torch: Any) -> None:
    tensor = torch.ones(3)
    for args, names in [((V, tensor), "numpy and torch"), ((tensor, V), "torch and numpy")]:
        error = error_of("i,i->", *args)
        assert type(error) is OperandError
        assert f"operands 0 and 1 are of two frameworks, {names}" in str(error)


def test_operands_on_two_devices(torch: Any) -> None:
    error = error_of("i,i,i->", torch.ones(3), torch.ones(3), torch.ones(3, device="meta"))
    assert type(error) is OperandError
    assert "operands 0 and 2 are on two devices, cpu and meta" in str(error)


@pytest.mark.parametrize(
    ("others", "options", "problem"),
    [
        ([[1.0, 2.0, 3.0]], {}, "operand 1 is of type list, the others are torch arrays"),
        ([2.0], {}, "operand 1 is of type float, the others are torch arrays"),
        ([], {"out": V}, "out is of type ndarray, but the operands are torch arrays"),
        ([], {"dtype": "float64"}, "dtype is a torch.dtype, not 'float64'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_go_with_tensors(others: list[Any], options: dict[str, Any], problem: str, torch: Any) -> None:
    error = error_of("i,i->i" if others else "i->i", torch.ones(3), *others, **options)
    assert type(error) is OperandError
    assert problem in str(error)


@pytest.mark.parametrize("options", [{}, {"order": "C"}], ids=str)
@pytest.mark.parametrize(
    ("equation", "dtype"),
    [
        ("ij,jk->ik", "bool"),
        ("i,j->i", "uint16"),
        ("ij,jk,kl->il", "uint64"),
        ("ij->i", "float8_e4m3fn"),
        (",->", "float8_e5m2"),
        ("ij,ij->", "complex32"),
    ],
)
def test_dtypes_that_torch_does_not_compute_in(equation: str, dtype: str, options: dict[str, Any], torch: Any) -> None:
    terms = equation.partition("->")[0].split(",")
    ones = [torch.ones([2] * len(term)).to(getattr(torch, dtype)) for term in terms]
    error = error_of(equation, *ones, **options)
    assert type(error) is OperandError
    assert str(error).startswith(f"operand 0 has dtype {dtype}, in which torch can't compute {equation!r} on cpu")
    wide = torch.complex64 if dtype == "complex32" else torch.float32
    found = fast_einsum(equation, *ones, dtype=wide, **options)
    torch.testing.assert_close(found, torch.einsum(equation, *[each.to(wide) for each in ones]))


@pytest.mark.parametrize("dtype", ["bool", "uint16", "float8_e4m3fn", "complex32", "uint4", "quint8"])
def test_dtypes_that_torch_cannot_be_asked_for(dtype: str, torch: Any) -> None:
    a = torch.ones(2, 2)
    error = error_of("ij,jk->ik", a, a, dtype=getattr(torch, dtype), casting="unsafe")
    assert str(error).startswith(f"dtype= is {dtype}, in which torch can't compute 'ij,jk->ik' on cpu")


@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize("options", [{}, {"dtype": "float64"}], ids=str)
@pytest.mark.parametrize("kind", ["sparse_coo", "sparse_csr", "_mkldnn", "nested", "jagged", "quantized"])
def test_layouts_that_torch_does_not_compute_with(kind: str, options: dict[str, Any], torch: Any) -> None:
    a, options = torch.ones(2, 2), {name: getattr(torch, value) for name, value in options.items()}
    equation, whole = "ij,jk->ik", a
    if kind in ("nested", "jagged"):
        layout = torch.jagged if kind == "jagged" else torch.strided
        equation, whole = "kl,bjk->bjl", torch.nested.nested_tensor([a, a], layout=layout)
    elif kind == "quantized":
        whole = torch.quantize_per_tensor(a, 0.1, 0, torch.quint8)
    else:
        whole = a.to_mkldnn() if kind == "_mkldnn" else a.to_sparse(layout=getattr(torch, kind))
    error = error_of(equation, a, whole, **options)
    assert type(error) is OperandError
    assert re.match(r"operand 1 is a (nested |quantized )?tensor of (layout|dtype) torch\.", str(error))


def test_out_that_torch_cannot_write_to(torch: Any) -> None:
    a = torch.ones(2, 2)
    unsafe = {"casting": "unsafe"}
    for operand, out, options, problem in (
        (a, torch.ones(2), {}, "out has shape (2,), the result (2, 2)"),
        (a, a.long(), {}, "casting='safe' doesn't convert torch.float32 to out's torch.int64"),
        (a, torch.empty(2, 2, dtype=torch.uint4), unsafe, "out is a tensor of dtype torch.uint4, to which torch can't"),
        (a.to_sparse(), a.clone(), unsafe, "can't write the result, a tensor of layout torch.sparse_coo"),
        (a, a.to("meta"), unsafe, "out is on meta, the operands are on cpu"),
    ):
        error = error_of("ij->ji", operand, out=out, **options)
        assert type(error) is OperandError
        assert problem in str(error)


def test_errors_of_subclasses_pass_through(torch: Any) -> None:

    class Refusing(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.einsum:
                raise NotImplementedError("not of this type")
            return super().__torch_function__(function, types, args, kwargs or {})

    with pytest.raises(NotImplementedError, match="not of this type"):
        fast_einsum("ij,jk->ik", *[torch.ones(2, 2).as_subclass(Refusing)] * 2)


@pytest.mark.parametrize("dtype", ["m8[s]", "M8[D]", "S2", "U2", "V4", "f4,i4"])
@pytest.mark.parametrize("equation", ["ij,jk->ik", "ij->j", "ij,ij->", "ij,jk,kl->il"])
def test_dtypes_that_numpy_does_not_compute_in(equation: str, dtype: str) -> None:
    array = np.zeros((30, 30), dtype)
    with pytest.raises(OperandError, match=r"NumPy's einsum has no products and sums of .*: convert the operands"):
        fast_einsum(equation, *[array] * (equation.count(",") + 1))
    assert fast_einsum("ij->ji", array).base is array


@pytest.mark.parametrize("other", [np.float64, np.int64, bool])
@pytest.mark.parametrize("dtype", ["m8[s]", "M8[D]", "S2", "U2", "V4", "f4,i4"])
def test_dtypes_that_numpy_does_not_compute_in_beside_numbers(dtype: str, other: Any) -> None:
    array, numbers = np.zeros((3, 3), dtype), np.zeros((3, 3), other)
    sentence = r"^NumPy's einsum has no products and sums of .*: convert the operands"
    for operands in ([array, numbers], [numbers, array], [numbers, array, numbers]):
        for expression in (fast_einsum, lambda e, *a: contract_expression(e, *[(3, 3)] * len(a))(*a)):
            with pytest.raises(OperandError, match=sentence):
                expression(",".join(["ij"] * len(operands)) + "->i", *operands)
    with pytest.raises(OperandError, match=sentence):
        fast_einsum("ij,ij->i", numbers, numbers, out=np.zeros(3, dtype))
