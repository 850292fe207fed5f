"""What a patched einsum leaves to the native function: errors, options, dtypes and labels; and the order of results."""

import numpy as np
import pytest
from equations import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from patches import NUMPY_NATIVE, random_arrays

from einops_fast import patched, profile

pytestmark = pytest.mark.usefixtures("all_native")


def test_errors_are_the_native_ones(home):
    name, module = home
    a, b = module.ones((2, 3)), module.ones((3, 4))
    bad = [
        (),
        ("ij",),
        ("ij,jk->iz", a, b),
        ("ijk,jk", a, b),
        ("ij,jk,kl", a, b),
        ("ij,jk", a),
    ]
    if name != "mxnet":  # which reports other mistakes late, or dies of them
        bad += [
            ("ij,jk", a, None),
            ("ij,jk", a, a),
            ("ii", a),
            ("ij,jk->ii", a, b),
            ("ij;jk", a, b),
            ("ij->j->i", a),
            ("ij\t->i", a),
            (a, [0, 1, 2]),
            (a, [0, 1], b, [1, 99]),
            (a, [0, 1], b),
            ("->", a),
            ("", a),
        ]
        _same_error(module.einsum, name, module, ("ij", a), {"nonsense": 1})
    options = [{}]
    if name == "numpy":
        bad += [("i...->i", a)]  # an ellipsis that the output drops
        options += [{"optimize": False}, {"nonsense": 1}, {"out": b}, {"optimize": np.ones(2)}, {"optimize": 1}]
    for operands in bad:
        for each in options:
            _same_error(module.einsum, name, module, operands, each)


def _same_error(native, name, module, operands, options):
    with pytest.raises(Exception) as expected:  # noqa: PT011
        native(*operands, **options)
    with patched(name), pytest.raises(expected.type) as error:
        module.einsum(*operands, **options)
    if name != "mxnet":  # whose messages have stack addresses
        assert str(error.value) == str(expected.value)


def test_bad_options_of_numpy():
    a, b = random_arrays((20, 30), (30, 40))
    _same_error(NUMPY_NATIVE, "numpy", np, ("ij,jk", a, b), {"casting": "wrong"})
    _same_error(NUMPY_NATIVE, "numpy", np, ("ij,jk", a, b), {"casting": None})
    a, b = random_arrays((2, 3), (3, 4))
    for options in [
        {"dtype": "float32"},  # not a safe cast
        {"order": "Z"},
        {"optimize": 0},
        {"out": np.zeros((2, 5))},
        {"out": np.zeros((2, 4), "float32")},
        {"dtype": [("x", int)]},
    ]:
        _same_error(NUMPY_NATIVE, "numpy", np, ("ij,jk", a, b), options)


@pytest.mark.parametrize("size", [3, 30], ids=["small", "large"])
@pytest.mark.parametrize("dtype", ["m8[s]", "M8[D]", "S2", "V4", "f4,i4"])
@pytest.mark.parametrize("options", [{}, {"optimize": True}, {"optimize": "greedy"}], ids=str)
def test_dtypes_that_loops_do_not_multiply(options, dtype, size):
    """Where NumPy chooses an order of contraction, its matrix products take some of these, in every call."""
    array = np.zeros((size, size), dtype) if dtype != "m8[s]" else np.full((size, size), 5, dtype)
    for equation, count in [("ij,jk->ik", 2), ("ij,ij->", 2), ("ij,jk,kl->il", 3), ("ij->j", 1), ("ij->ji", 1)]:
        for _ in range(4):
            try:
                expected = NUMPY_NATIVE(equation, *[array] * count, **options)
            except Exception:
                _same_error(NUMPY_NATIVE, "numpy", np, (equation, *[array] * count), options)
            else:
                with patched("numpy"):
                    found = np.einsum(equation, *[array] * count, **options)
                assert found.dtype == expected.dtype
                assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("size", [3, 30], ids=["small", "large"])
@pytest.mark.parametrize(("dtype", "wider"), [("?", "i4"), ("?", "f8"), ("i1", "i8"), ("f4", "f8")])
@pytest.mark.parametrize("options", [{}, {"optimize": True}, {"optimize": "greedy", "casting": "unsafe"}], ids=str)
def test_what_a_wider_out_changes_is_what_it_changes_in_numpy(options, dtype, wider, size):
    array = np.full((size, size), 1 if dtype == "?" else 50).astype(dtype)
    for equation, count in [("ij,jk->ik", 2), ("ij,jk,kl->il", 3), ("ij,ij->i", 2), ("ij->i", 1)]:
        shape = (size,) * len(equation.partition("->")[2])
        for _ in range(3):
            expected, found = np.zeros(shape, wider), np.zeros(shape, wider)
            NUMPY_NATIVE(equation, *[array] * count, out=expected, **options)
            with patched("numpy"):
                assert np.einsum(equation, *[array] * count, out=found, **options) is found
            np.testing.assert_allclose(found, expected, rtol=1e-6)


LABELS = [
    [[True, 0]], [[-1, 0]], [[26, 0]], [[25, 26]], [[0, 30]], [[30, 0], [0]], [[26, 27], [27, 26]], [[52, 0]],
    [[0.5, 1]], [["a", "b"]], [[None, 0]], [0], [None], ["ij"], [np.array([True, False])], [[2**70, 0]], [[0, 0]],
    [[26, 1], [1, 27]], [[0, 1], [1, 26]], [[26, 1], [1, 0]], [[40, 1], [1, 0], [0, 40]], [[0, True], [1, 2]],
    [[26, 0], [0, 1], [1, 25]], [[..., 26], [26, 0]],
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:In future:DeprecationWarning")
@pytest.mark.parametrize("options", [{}, {"optimize": True}, {"optimize": "greedy"}, {"optimize": None}], ids=str)
@pytest.mark.parametrize("size", [3, 40], ids=["small", "large"])
@pytest.mark.parametrize("labels", LABELS, ids=str)
def test_unusual_labels_mean_what_they_mean_to_numpy(labels, size, options):
    """With ``optimize``, NumPy's letters begin with small ones: a result that no list names has another order."""
    arrays = random_arrays((size, size + 1), (size + 1, size), (size, size + 2))
    if "None" in str(labels) or len(labels) == 1 or (len(labels) == 2 and len(labels[1]) == 1):
        arrays = arrays[:1]
    elif labels[-1] in ([27, 26], [0, 40]):
        arrays = arrays[: len(labels) - 1]
    operands = [part for pair in zip(arrays, labels, strict=False) for part in pair] + labels[len(arrays) :]
    for _ in range(3):  # the first call, the one that is planned, and one that has a plan
        try:
            expected = NUMPY_NATIVE(*operands, **options)
        except Exception:
            _same_error(NUMPY_NATIVE, "numpy", np, operands, options)
        else:
            with patched("numpy"):
                found = np.einsum(*operands, **options)
            np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("options", [{}, {"optimize": True}], ids=str)
def test_lists_of_labels_and_optimizers_are_mxnets_to_refuse(mnp, options):
    a, one = mnp.ones((2, 3)), mnp.array(1.0)
    native = vars(mnp)["einsum"]
    for operands in [(a,), (a, [0, 1]), (a, [0, 1], [0]), (one, []), (one, [], [])]:
        _same_error(native, "mxnet", mnp, operands, options)
    for optimize in (None, "greedy", ["einsum_path", (0, 1)]):
        _same_error(native, "mxnet", mnp, ("ij,jk", a, mnp.ones((3, 4))), {"optimize": optimize})


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("make", [np.asmatrix, lambda a: np.ma.array(a, mask=a > 2)], ids=["matrix", "masked"])
def test_subclasses_of_arrays(make, calls):
    a, b = random_arrays((2, 3), (3, 4))
    expected = np.einsum("ij,jk", make(a), b)
    native_calls = calls(np)
    with patched("numpy"):
        result = np.einsum("ij,jk", make(a), b)
    np.testing.assert_array_equal(result, expected)
    assert type(result) is type(expected)
    assert len(native_calls) == 1


def test_scalars_and_lists(calls):
    native_calls = calls(np)
    with patched("numpy"):
        np.testing.assert_array_equal(np.einsum(",i->i", 3, [1, 2]), [3, 6])
    assert len(native_calls) == 1


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_result_in_c_order_stays_in_it(data):
    """Code that calls ``view`` on it relies on that."""
    torch = pytest.importorskip("torch")
    case = data.draw(cases(max_operands=3, max_size=5))
    operands = [torch.ones(shape).requires_grad_(data.draw(st.booleans())) for shape in case.shapes]
    native = torch.einsum(case.letters, *operands)
    with patched("torch"):
        result = torch.einsum(case.letters, *operands)
    assert result.is_contiguous() or not native.is_contiguous()


@pytest.mark.parametrize(("length", "left"), [(100, 1), (4000, 0)])
def test_few_products_whose_result_would_be_copied_are_left_to_torch(torch, length, left):
    operands = torch.ones(2, length), torch.ones(2, 2, length)
    with patched("torch"), profile() as seen:
        result = torch.einsum("ac,abc->cb", *operands)
    assert result.is_contiguous()
    assert sum(row.calls for row in seen.native) == left
