"""Expressions: the same results as the einsum that they stand for, whatever changes from call to call."""

import copy
import io
import multiprocessing
import pickle
import sys
import threading
from functools import partial
from unittest import mock

import numpy as np
import pytest
from attention_arrays import arrays_of, assert_close, numbers, random_arrays

from einops_fast import (
    OperandError,
    ShapeError,
    SubscriptsError,
    contract_expression,
    fast_einsum,
)
from einops_fast.einsum import plan_call
from einops_fast.runtime.precision import allowed
from einops_fast.runtime.tuning import current_mode


@pytest.fixture(params=["numpy", "torch", "mxnet"])
def make(request):
    """Makes an array of each framework from NumPy's."""
    return partial(arrays_of, request.param)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("bind,bjnd->bnij", [(2, 3, 4, 5), (2, 6, 4, 5)]),
        ("ij->j", [(3, 4)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("...i,ij", [(2, 3, 4), (4, 5)]),
        ("batch in, in out -> batch out", [(2, 3), (3, 4)]),
    ],
)
def test_same_as_fast_einsum(equation, shapes, make):
    arrays = random_arrays(*shapes)
    expected = fast_einsum(equation, *arrays)
    expression = contract_expression(equation, *shapes)
    for _ in range(3):
        assert_close(expression(*map(make, arrays)), expected)


@pytest.mark.parametrize("constants", [[0], [1], [2], [0, 2], (2, 0), {1, 2}, [0, 1, 2], []], ids=str)
def test_constants(constants, make):
    shapes = [(2, 3), (3, 4), (4, 5)]
    arrays = [make(array) for array in random_arrays(*shapes)]
    expected = fast_einsum("ij,jk,kl->il", *random_arrays(*shapes))
    given = [arrays[at] if at in constants else shapes[at] for at in range(3)]
    expression = contract_expression("ij,jk,kl->il", *given, constants=constants)
    for _ in range(2):
        assert_close(expression(*[array for at, array in enumerate(arrays) if at not in constants]), expected)


def test_the_values_of_a_constant_may_change():
    a, b = random_arrays((2, 3), (3, 4))
    expression = contract_expression("ij,jk", (2, 3), b, constants=[1])
    expression(a)
    b *= 2
    np.testing.assert_allclose(expression(a), a @ b, rtol=1e-5)


def test_forms():
    a, b = random_arrays((2, 3), (3, 4))
    expression = contract_expression((2, 3), ["row", "mid"], b, ["mid", "column"], ["column", "row"], constants=[1])
    np.testing.assert_allclose(expression(a), (a @ b).T, rtol=1e-5)
    # Arrays may stand for shapes, and scalars and lists count as NumPy's arrays.
    np.testing.assert_allclose(contract_expression("ij,jk", a, b.shape)(a, b), a @ b, rtol=1e-5)
    expression = contract_expression(",i->i", (), [3])
    for _ in range(2):
        np.testing.assert_array_equal(expression(2, [1, 2, 3]), [2, 4, 6])


def test_out(make):
    a, b = random_arrays((2, 3), (3, 4))
    out = make(np.zeros((4, 2), "float32"))
    expression = contract_expression("ij,jk->ki", (2, 3), (3, 4))
    for _ in range(2):
        assert expression(make(a), make(b), out=out) is out
        assert_close(out, (a @ b).T)


def test_options():
    a, b = random_arrays((2, 3), (3, 4), dtype="float64")
    expression = contract_expression("ij,jk->ki", (2, 3), (3, 4), dtype="float32", casting="same_kind", order="C")
    result = expression(a, b)
    assert result.dtype == "float32"
    assert result.flags.c_contiguous
    np.testing.assert_allclose(result, (a @ b).T, rtol=1e-5)


def test_shows_itself():
    _, b = random_arrays((2, 3), (3, 4))
    expression = contract_expression("ij,jk", (2, 3), b, constants=[1])
    assert repr(expression) == "ContractExpression('ij,jk', (2, 3), (3, 4), constants=[1])"
    assert repr(contract_expression("ij->ji", (2, 3))) == "ContractExpression('ij->ji', (2, 3))"
    assert (expression.equation, expression.shapes, expression.constants) == ("ij,jk", ((2, 3), (3, 4)), (1,))


# ---- what may change between calls


def test_strides_and_dtypes_change():
    expression = contract_expression("ij,jk->ik", (6, 6), (6, 6))
    wide = random_arrays((12, 6))[0]
    for a in [wide[:6], wide[::2], wide[:6].T, wide[:6].astype("float64"), wide[:6].astype("int64"), wide[5::-1]]:
        for _ in range(2):
            result = expression(a, a)
            assert result.dtype == a.dtype
            np.testing.assert_allclose(result, a @ a, rtol=1e-4)
    np.testing.assert_allclose(expression(wide[:1].repeat(6, 0), wide[:6]), wide[:1].repeat(6, 0) @ wide[:6], rtol=1e-4)


def test_autocast_changes(torch):
    expression = contract_expression("ij,jk->ik", (2, 3), (3, 4))
    a, b = torch.rand(2, 3), torch.rand(3, 4)
    for _ in range(2):
        assert expression(a, b).dtype is torch.float32
        with torch.autocast("cpu", torch.bfloat16):
            assert expression(a, b).dtype is torch.bfloat16


@pytest.mark.parametrize("called", [False, True])
def test_torch_compile(called, torch):
    a, b = torch.rand(2, 3), torch.rand(3, 4)
    out = torch.zeros(4, 2, dtype=torch.float64)
    expression = contract_expression("row mid, mid column -> column row", (2, 3), b, constants=[1])
    doubled = contract_expression("ij,jk->ki", (2, 3), (3, 4), dtype=torch.float64, order="C", autotune="never")
    if called:
        expression(a)
        doubled(a, b)
    compiled = torch.compile(lambda a: expression(a) + 1, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(a), (a @ b).T + 1)
    compiled = torch.compile(lambda a, b: doubled(a, b, out=out), fullgraph=True, backend="eager")
    assert compiled(a, b).dtype is torch.float64
    torch.testing.assert_close(out, (a.double() @ b.double()).T)


def test_may_be_made_while_torch_compile_traces(torch):
    def call(q, k):
        return contract_expression("ab,bc->ca", q.shape, k.shape)(q, k)

    compiled = torch.compile(call, fullgraph=True, backend="eager")
    for length in (2, 3, 4):
        q, k = torch.randn(length, 5), torch.randn(5, 7)
        torch.testing.assert_close(compiled(q, k), (q @ k).T)


def test_threads_with_two_frameworks(torch):
    expression = contract_expression("ij,jk->ik", (2, 3), (3, 4))
    a, b = random_arrays((2, 3), (3, 4))
    wrong = []

    def work(make, kind):
        for _ in range(500):
            result = expression(make(a), make(b))
            if type(result) is not kind or not np.allclose(result, a @ b):
                wrong.append(result)

    threads = [
        threading.Thread(target=work, args=args)
        for args in [(np.asarray, np.ndarray), (torch.from_numpy, torch.Tensor), (np.asfortranarray, np.ndarray)]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- errors


@pytest.mark.parametrize(
    ("error", "message", "given", "options"),
    [
        (SubscriptsError, "2 terms for 1 operand", [(2, 3)], {}),
        (ShapeError, "'j' has size 4", [(2, 3), (4, 5)], {}),
        (ShapeError, "operand 1 has 3 axes", [(2, 3), (3, 4, 5)], {}),
        (OperandError, "operands 0 to 1", [(2, 3), (3, 4)], {"constants": [2]}),
        (OperandError, "operands 0 to 1", [(2, 3), (3, 4)], {"constants": [-1]}),
        (OperandError, "operand 1 is neither a shape nor an array", [(2, 3), 5], {}),
        (OperandError, "operand 1 is neither a shape nor an array", [(2, 3), (3, "x")], {}),
        (ShapeError, r"operand 0 of shape \(2, -3\) has size -3 in axis 1", [(2, -3), (-3, 4)], {}),
        (OperandError, "order is one of", [(2, 3), (3, 4)], {"order": "Z"}),
    ],
)
def test_errors_when_it_is_made(error, message, given, options):
    with pytest.raises(error, match=message):
        contract_expression("ij,jk", *given, **options)


def test_wrong_shape(make):
    a, b, wrong = map(make, random_arrays((2, 3), (3, 4), (3, 5)))
    message = r"operand 1 has shape \(3, 5\); the expression was made for \(3, 4\)"
    expression = contract_expression("ij,jk", (2, 3), (3, 4))
    for _ in range(2):
        with pytest.raises(ShapeError, match=message):
            expression(a, wrong)
        expression(a, b)
    with pytest.raises(ShapeError, match=message):
        contract_expression("ij,jk", a, (3, 4), constants=[0])(wrong)


def test_wrong_number_of_arrays():
    a, b = random_arrays((2, 3), (3, 4))
    expression, constant = contract_expression("ij,jk", a, b), contract_expression("ij,jk", a, b, constants=[1])
    for _ in range(2):
        for arrays in [(), (a,), (a, b, b)]:
            with pytest.raises(OperandError, match=f"takes 2 arrays, not {len(arrays)}"):
                expression(*arrays)
        for arrays in [(), (a, b)]:
            with pytest.raises(OperandError, match=f"takes 1 array, not {len(arrays)}"):
                constant(*arrays)
        expression(a, b)
        constant(a)


def test_frameworks_do_not_mix(torch):
    a, b = random_arrays((2, 3), (3, 4))
    with pytest.raises(OperandError, match="two frameworks"):
        contract_expression("ij,jk", (2, 3), b, constants=[1])(torch.from_numpy(a))
    with pytest.raises(OperandError, match="out is of type"):
        contract_expression("ij,jk", (2, 3), (3, 4))(a, b, out=torch.zeros(2, 4))


STACKS = {
    "contiguous": lambda torch: (torch.randn(2, 3, 4, 5), torch.randn(2, 3, 6, 5)),
    "later in memory": lambda torch: (torch.randn(4, 3, 4, 5)[2:], torch.randn(3, 3, 6, 5)[1:]),
    "rows transposed": lambda torch: (torch.randn(2, 3, 5, 4).mT, torch.randn(2, 3, 5, 6).mT),
    "rows with gaps": lambda torch: (torch.randn(2, 3, 4, 9)[..., 2:7], torch.randn(2, 3, 9, 5)[:, :, 3:]),
    "one matrix": lambda torch: (torch.randn(1, 1, 4, 5), torch.randn(1, 1, 6, 5)),
    "the same matrix": lambda torch: (torch.randn(4, 5).expand(2, 3, 4, 5), torch.randn(6, 5).expand(2, 3, 6, 5)),
    "negated": lambda torch: (torch.randn(2, 3, 4, 5, dtype=torch.complex64).conj().imag, torch.randn(2, 3, 6, 5)),
    "batch of size 1": lambda torch: (torch.randn(1, 3, 4, 5), torch.randn(2, 3, 6, 5)),
    "nothing": lambda torch: (torch.randn(0, 3, 4, 5), torch.randn(0, 3, 6, 5)),
}


@pytest.mark.parametrize("layout", STACKS)
@pytest.mark.parametrize("equation", ["bnid,bnjd->bnij", "bnid,bnjd->bnji", "bnid,bnjd->nbij"])
def test_stacks_of_matrices_of_torch(equation, layout, torch):
    a, b = STACKS[layout](torch)
    expression = contract_expression(equation, a.shape, b.shape)
    expected = torch.einsum(equation, a.double(), b.double())
    for _ in range(2):
        torch.testing.assert_close(expression(a, b).double(), expected, rtol=1e-4, atol=1e-5)
    grad = a.clone().requires_grad_()
    expression(grad, b).sum().backward()
    found = torch.func.vmap(lambda a, b: expression(a, b))(torch.stack([a, -a]), torch.stack([b, b]))
    torch.testing.assert_close(found[1].double(), -expected, rtol=1e-4, atol=1e-5)
    wanted = torch.autograd.grad(torch.einsum(equation, grad, b).sum(), grad)[0]
    torch.testing.assert_close(grad.grad, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
@pytest.mark.parametrize("copied", [lambda made: pickle.loads(pickle.dumps(made)), copy.copy, copy.deepcopy])
def test_pickled_and_copied(make, used, copied):
    a, b, c = map(make, random_arrays((3, 4), (4, 5), (5, 2)))
    made = contract_expression("ij,jk,kl->il", (3, 4), b, (5, 2), constants=[1], order="C", optimize="greedy")
    expected = made(a, c)
    if not used:
        made.forget_plans()
    loaded = copied(made)
    assert repr(loaded) == repr(made)
    assert_close(loaded(a, c), numbers(expected))
    with pytest.raises(ShapeError, match="operand 0 has shape"):
        loaded(c, c)


def test_pickled_for_a_process_that_is_spawned():
    made = contract_expression("word other, other k -> k word", (3, 4), (4, 5))
    a, b = np.random.rand(3, 4), np.random.rand(4, 5)
    expected = made(a, b)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (found,) = pool.starmap(made, [(a, b)])
    np.testing.assert_allclose(found, expected)


def test_pickled_within_a_module(torch):
    module = torch.nn.Linear(4, 5)
    module.project = contract_expression("bi,oi->bo", (3, 4), module.weight, constants=[1])
    module.project(torch.ones(3, 4))
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    torch.testing.assert_close(loaded.project(torch.ones(3, 4)), module.project(torch.ones(3, 4)))
    assert loaded.project._held[0] is loaded.weight  # one parameter, as before


def test_settings_hold_for_calls_alone() -> None:
    """An expression has modes and precisions of its own, also after it was copied or pickled."""
    seen = []

    def keep(*arguments, **options):
        seen.append((current_mode(), allowed()))
        return plan_call(*arguments, **options)

    expression = contract_expression("ij,jk->ik", (2, 3), (3, 4), autotune="never", precision="tf32")
    for each in (expression, copy.deepcopy(expression), pickle.loads(pickle.dumps(expression))):
        with mock.patch.object(sys.modules["einops_fast.einsum"], "plan_call", keep):
            for _ in range(2):
                assert each(np.ones((2, 3)), np.ones((3, 4))).tolist() == [[3.0] * 4] * 2
        assert (current_mode(), allowed()) == ("auto", None)
    assert seen == [("never", "tf32")] * len(seen) != []
