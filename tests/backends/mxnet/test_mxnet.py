"""The MXNet backend: its import, what each step becomes, gradients, and hybridized blocks."""

import os
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from optional_mxnet import mxnet_or_skip
from python_process import run_python

from einops_fast import OperandError, ShapeError, attention, fast_einsum, patched, scaled_dot_product_attention
from einops_fast.backends import get_backend
from einops_fast.planning.steps import AS_IS, Arrange, Cast, Diagonal, Gemm, Multiply, Native, Select, Step, Sum, View

Array = npt.NDArray[Any]

mxnet = mxnet_or_skip()
autograd, gluon, mnp, npx = mxnet.autograd, mxnet.gluon, mxnet.np, mxnet.npx
backend: Any = get_backend("mxnet")

RTOL = {"float16": 5e-3, "float32": 1e-5, "float64": 1e-12, "int32": 0, "int64": 0, "uint8": 0, "bool": 0}


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def shapes_of(equation: str, **sizes: int) -> list[tuple[int, ...]]:
    """Shapes for an equation in letters, without ellipsis."""
    sizes = {"b": 3, "n": 2, "i": 4, "j": 5, "d": 6, "e": 3, "h": 2, "k": 7} | sizes
    return [tuple(sizes[label] for label in term) for term in equation.split("->")[0].split(",")]


def check(got: Any, wanted: Array, dtype: str) -> None:
    assert type(got) is mnp.ndarray
    assert got.dtype == np.dtype(dtype)
    # MXNet computes later: asnumpy() waits for it.
    np.testing.assert_allclose(got.asnumpy(), wanted.astype(dtype), rtol=RTOL[dtype], atol=RTOL[dtype] * 10)
    assert got.shape == wanted.shape


# ---- import


IMPORT = """
import sys, warnings
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
import numpy
from einops_fast.backends.mxnet.importing import import_mxnet
warnings.simplefilter("error")
def names():
    return {name: value for name, value in vars(numpy).items() if not isinstance(value, ModuleType)}
before = names()
"""

IMPORTED = {
    "leaves NumPy as it was, and functions work that read names which it has removed": """
mxnet = import_mxnet()
after = names()
assert after.keys() == before.keys()
assert all(after[name] is value for name, value in before.items())
assert import_mxnet() is mxnet is sys.modules["mxnet"]
warnings.simplefilter("ignore")
a = mxnet.np.array([[1.0, 2.0], [3.0, 4.0]])
assert a[a > 2].shape == (2,)
a[mxnet.np.array([True, False], dtype="bool")] = 0
assert mxnet.np.pad(a, ((1, 1), (0, 0))).shape == (4, 2)
assert mxnet.np.isnan(a).dtype == bool
assert mxnet.np.array(numpy.True_)
assert numpy.prod(a).item() == 0 and mxnet.np.msort(a).shape == (2, 2)
mxnet.test_utils.assert_almost_equal(a, numpy.array([[0, 0], [3, 4]], "float32"))
""",
    "leaves NumPy as it was when it fails": """
sys.modules["mxnet.numpy"] = None
try:
    import_mxnet()
except ImportError:
    pass
else:
    raise AssertionError("imported without mxnet.numpy")
assert names().keys() == before.keys()
""",
    "by threads at once gives all of them the whole module": """
with ThreadPoolExecutor(8) as executor:
    modules = list(executor.map(lambda _: import_mxnet(), range(8)))
assert all(module.np.ones(2).shape == (2,) for module in modules)
""",
}


@pytest.mark.parametrize("script", IMPORTED.values(), ids=IMPORTED)
def test_import(script: str) -> None:
    run_python("-c", IMPORT + script)


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
def test_import_leaves_the_thread_count_of_torch() -> None:
    """Whichever of the two comes first."""
    unset = dict.fromkeys(name for name in os.environ if name.endswith("_NUM_THREADS"))
    mxnet = f"{IMPORT}\nimport_mxnet()\nwarnings.resetwarnings()"

    def threads(*lines: str) -> str:
        return run_python("-c", "\n".join([*lines, "print(torch.get_num_threads())"]), **unset).stdout

    usual, kept = threads("import torch; print(torch.get_num_threads()); torch.set_num_threads(3)", mxnet).split()
    assert kept == "3"
    assert threads(mxnet, "import torch").strip() == usual


# ---- steps

Q, K = (4, 5, 2, 6), (4, 3, 2, 6)

STEPS: dict[str, tuple[Step, list[tuple[int, ...]], Callable[..., Array]]] = {
    "cast": (Cast((0,), "ij", (2, 3), "float32"), [(2, 3)], lambda a: a),
    "diagonal": (Diagonal((0,), "ij", (3, 2), ((0, 2), (1,))), [(3, 2, 3)], lambda a: np.einsum("iji->ij", a)),
    "diagonal of three": (Diagonal((0,), "i", (3,), ((0, 1, 2),)), [(3, 3, 3)], lambda a: np.einsum("iii->i", a)),
    "select": (Select((0,), "j", (3,), (0, 2)), [(2, 3, 4)], lambda a: a[0, :, 0]),
    "sum of last": (Sum((0,), "i", (2,), (1, 2)), [(2, 3, 4)], lambda a: a.sum((1, 2))),
    "sum of first": (Sum((0,), "k", (4,), (0, 1)), [(2, 3, 4)], lambda a: a.sum((0, 1))),
    "sum of all": (Sum((0,), "", (), (0, 1)), [(2, 3)], lambda a: a.sum()),
    "sum of many axes": (Sum((0,), "bdfh", (2,) * 4, (0, 2, 4, 6)), [(3, 2) * 4], lambda a: a.sum((0, 2, 4, 6))),
    "large sum of last": (Sum((0,), "i", (30,), (1, 2)), [(30, 20, 40)], lambda a: a.sum((1, 2))),
    "large sum of first": (Sum((0,), "k", (40,), (0, 1)), [(30, 20, 40)], lambda a: a.sum((0, 1))),
    "large sum of first and last": (Sum((0,), "j", (20,), (0, 2)), [(30, 20, 40)], lambda a: a.sum((0, 2))),
    "large sum of all": (Sum((0,), "", (), (0, 1)), [(100, 200)], lambda a: a.sum()),
    "large sum of many axes": (
        Sum((0,), "bdfh", (3,) * 4, (0, 2, 4, 6)),
        [(4, 3) * 4],
        lambda a: a.sum((0, 2, 4, 6)),
    ),
    "sum of nothing": (Sum((0,), "i", (2,), (1,)), [(2, 0)], lambda a: a.sum(1)),
    "view": (View((0,), "ji", (3, 2), Arrange((1, 0), None, "no strides")), [(2, 3)], lambda a: a.T),
    "copy": (View((0,), "ij", (2, 3), Arrange(None, None, "no strides")), [(2, 3)], lambda a: a),
    "product of equals": (
        Multiply((0, 1), "ij", (2, 3), AS_IS, AS_IS, 0, 6),
        [(2, 3), (2, 3)],
        lambda a, b: a * b,
    ),
    "product with broadcasting": (
        Multiply((0, 1), "ijk", (2, 3, 4), AS_IS, Arrange(None, (2, 1, 4)), 0, 24),
        [(2, 3, 4), (2, 4)],
        lambda a, b: a * b[:, None],
    ),
    "product with a number": (Multiply((0, 1), "ij", (2, 3), AS_IS, AS_IS, 0, 6), [(2, 3), ()], lambda a, b: a * b),
    "product of nothing": (
        Multiply((0, 1), "ij", (0, 3), AS_IS, AS_IS, 0, 0),
        [(0, 3), (3,)],
        lambda a, b: a * b,
    ),
    "outer product": (
        Multiply((0, 1), "bij", (2, 3, 4), Arrange(None, (2, 3, 1)), Arrange(None, (2, 1, 4)), 0, 24),
        [(2, 3), (2, 4)],
        lambda a, b: np.einsum("bi,bj->bij", a, b),
    ),
    "outer product, right first": (
        Multiply((0, 1), "ji", (4, 3), AS_IS, Arrange(None, (4, 1)), 0, 12),
        [(3,), (4,)],
        lambda a, b: np.einsum("i,j->ji", a, b),
    ),
    "product in turns": (
        Multiply((0, 1), "abcdef", (2,) * 6, Arrange(None, (2, 1) * 3), Arrange(None, (2, 1, 2, 1, 2)), 0, 64),
        [(2, 2, 2), (2, 2, 2)],
        lambda a, b: np.einsum("ace,bdf->abcdef", a, b),
    ),
    "product of many axes": (
        Multiply((0, 1), "abcdefgh", (2,) * 8, AS_IS, AS_IS, 0, 256),
        [(2,) * 8, (2,)],
        lambda a, b: a * b,
    ),
    "summed product": (
        Multiply((0, 1), "i", (2,), AS_IS, Arrange((1, 0)), 1, 6),
        [(2, 3), (3, 2)],
        lambda a, b: np.einsum("ij,ji->i", a, b),
    ),
    "summed product with broadcasting": (
        Multiply((0, 1), "bi", (2, 3), AS_IS, Arrange(None, (2, 1, 4)), 1, 24),
        [(2, 3, 4), (2, 4)],
        lambda a, b: np.einsum("bij,bj->bi", a, b),
    ),
    "gemm": (Gemm((0, 1), "ik", (2, 4), AS_IS, AS_IS, (), 2, 4, 3), [(2, 3), (3, 4)], lambda a, b: a @ b),
    "gemm of both transposed": (
        Gemm((0, 1), "ik", (2, 4), AS_IS, AS_IS, (), 2, 4, 3, transpose_left=True, transpose_right=True),
        [(3, 2), (4, 3)],
        lambda a, b: (b @ a).T,
    ),
    "gemm in batches": (
        Gemm((0, 1), "bik", (5, 2, 4), AS_IS, AS_IS, (5,), 2, 4, 3),
        [(5, 2, 3), (5, 3, 4)],
        lambda a, b: a @ b,
    ),
    "gemm of merged axes": (
        Gemm(
            (0, 1),
            "bnij",
            (4, 2, 5, 3),
            Arrange((0, 2, 1, 3), (8, 5, 6), "no strides"),
            Arrange((0, 2, 1, 3), (8, 3, 6), "no strides"),
            (8,),
            5,
            3,
            6,
            transpose_right=True,
        ),
        [Q, K],
        lambda q, k: np.einsum("bind,bjnd->bnij", q, k),
    ),
    "gemm of nothing": (
        Gemm((0, 1), "ik", (2, 4), AS_IS, AS_IS, (), 2, 4, 0),
        [(2, 0), (0, 4)],
        lambda a, b: a @ b,
    ),
    "native": (
        Native((0, 1), "ik", (2, 4), "ij,jk->ik", "a test", 24),
        [(2, 3), (3, 4)],
        lambda a, b: a @ b,
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("step", STEPS)
def test_step(step: str, dtype: str) -> None:
    what, shapes, reference = STEPS[step]
    values = [numbers(*shape, seed=at).astype(dtype) for at, shape in enumerate(shapes)]
    operands = [mnp.array(value, dtype=dtype) for value in values]
    got = backend.emit(what)(*operands)
    check(got, np.asarray(reference(*values)), "float32" if isinstance(what, Cast) else dtype)
    got[()] = 0
    for operand, value in zip(operands, values, strict=True):
        if not isinstance(what, Select):
            np.testing.assert_array_equal(operand.asnumpy(), value)


def test_reshape_shares_memory() -> None:
    a = mnp.zeros((2, 3))
    backend.arrange(Arrange(None, (3, 2)))(a)[...] = 1
    assert a.asnumpy().sum() == 6


# ---- values

EQUATIONS = [
    "bnid,bnjd->bnij",
    "bind,bjnd->bnij",
    "bind,jnd->bnij",
    "bnij,bjnd->bind",
    "bnih,nhd->bid",
    "bij,bjk->bik",
    "bij,kj->ikb",
    "bi,bj->bij",
    "bi,bj->bji",
    "bij,bj->bij",
    "bij,bij->b",
    "bij,bij->",
    "bik,bjk->ij",
    "b,j->jb",
    "bij->jb",
    "bij->bij",
    "bij->i",
    "bij->",
    "bid,bjd,bd->bij",
    "bi,ij,jk,kd->bd",
    "bnhi,ekj->benhikj",
    "bnd,ihe->bindhe",
]
# MXNet's products don't broadcast over as many axes in turn as the last one's.
WITHOUT_LOOPS = EQUATIONS[:-1]


@pytest.mark.parametrize("dtype", RTOL)
@pytest.mark.parametrize("equation", EQUATIONS)
def test_values_and_dtype(equation: str, dtype: str) -> None:
    values = [np.rint(numbers(*shape)) for shape in shapes_of(equation)]
    if dtype in ("uint8", "bool"):
        values = [abs(value) % 2 for value in values]
    wanted = np.einsum(equation, *values)
    check(fast_einsum(equation, *(mnp.array(value, dtype=dtype) for value in values)), wanted, dtype)


@pytest.mark.parametrize("equation", WITHOUT_LOOPS)
def test_floats_never_take_the_native_loops(equation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("called")

    monkeypatch.setattr("einops_fast.backends.mxnet.backend.native_einsum", refuse)
    monkeypatch.setattr("einops_fast.backends.mxnet.ops.native_einsum", refuse)
    fast_einsum(equation, *(mnp.ones(shape) for shape in shapes_of(equation)))


def test_float16_is_added_up_in_float32() -> None:
    ones = mnp.ones((1, 5000), dtype="float16")
    assert fast_einsum("ij,kj->ik", ones, ones).item() == 5000


def test_dtype_and_casting() -> None:
    a, b = mnp.ones((2, 3), dtype="float32"), mnp.ones((3, 4), dtype="float64")
    with pytest.raises(OperandError, match="operands 0 and 1 have two dtypes"):
        fast_einsum("ij,jk->ik", a, b)
    assert fast_einsum("ij,jk->ik", a, b, dtype="float64").dtype == np.float64
    with pytest.raises(OperandError, match="operand 1 has dtype float64"):
        fast_einsum("ij,jk->ik", a, b, dtype="float32")
    assert fast_einsum("ij,jk->ik", a, b, dtype="float32", casting="same_kind").dtype == np.float32


def test_out_and_order() -> None:
    a, b = mnp.ones((2, 3)), mnp.ones((3, 4))
    out = mnp.zeros((2, 4), dtype="float64")
    assert fast_einsum("ij,jk->ik", a, b, out=out) is out
    assert (out.asnumpy() == 3).all()
    total = mnp.zeros(())
    assert fast_einsum("ij->", a, out=total) is total
    assert total.item() == 6
    with pytest.raises(OperandError, match="shape"):
        fast_einsum("ij,jk->ik", a, b, out=mnp.zeros((4, 2)))
    with pytest.raises(OperandError, match="doesn't convert"):
        fast_einsum("ij,jk->ik", a, b, out=mnp.zeros((2, 4), dtype="int32"))
    assert fast_einsum("ij,jk->ik", a, b, order="C").shape == (2, 4)
    with pytest.raises(OperandError, match="C order"):
        fast_einsum("ij,jk->ik", a, b, order="F")


def test_operands_that_do_not_belong_together() -> None:
    a = mnp.ones((2, 2))
    with pytest.raises(OperandError, match=r"operands 0 and 1 .* cpu\(0\) and cpu\(1\)"):
        fast_einsum("ij,jk->ik", a, mnp.ones((2, 2), device=mxnet.cpu(1)))
    with pytest.raises(OperandError):
        fast_einsum("ij,jk->ik", a, np.ones((2, 2)))
    with pytest.raises(OperandError):
        fast_einsum("ij,jk->ik", a, a.as_nd_ndarray())


# ---- gradients


def gradients(equation: str, values: Sequence[Array], weight: Array) -> list[Array]:
    """Gradients of the sum of ``weight`` times the result, which einsum computes as well."""
    inputs, output = equation.split("->")
    terms = inputs.split(",")
    found = []
    for at, term in enumerate(terms):
        others = [other for index, other in enumerate(terms) if index != at]
        rest = [value for index, value in enumerate(values) if index != at]
        # The operand's own place is taken by ones, for axes that nothing else has.
        whole = ",".join([output, *others, term]) + "->" + term
        found.append(np.einsum(whole, weight, *rest, np.ones_like(values[at])))
    return found


@pytest.mark.parametrize("grad_req", ["write", "add"])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_gradients(equation: str, grad_req: str) -> None:
    values = [numbers(*shape, seed=at) for at, shape in enumerate(shapes_of(equation))]
    operands = [mnp.array(value, dtype="float64") for value in values]
    weight = numbers(*np.einsum(equation, *values).shape, seed=9)
    times = 2 if grad_req == "add" else 1
    for operand in operands:
        operand.attach_grad(grad_req)
    for _ in range(2):
        with autograd.record():
            result = fast_einsum(equation, *operands)
        result.backward(mnp.array(weight, dtype="float64"))
    for operand, wanted in zip(operands, gradients(equation, values, weight), strict=True):
        np.testing.assert_allclose(operand.grad.asnumpy(), times * wanted, rtol=1e-9, atol=1e-9)


def test_gradient_through_a_diagonal() -> None:
    a = mnp.ones((3, 3))
    a.attach_grad()
    with autograd.record():
        trace = fast_einsum("ii->", a)
    trace.backward()
    np.testing.assert_array_equal(a.grad.asnumpy(), np.eye(3))


def test_gradient_where_an_axis_is_broadcast() -> None:
    """MXNet's own einsum gets this one wrong."""
    a, b, weight = numbers(1, 2, 3), numbers(4, 3, 5, seed=1), numbers(4, 2, 5, seed=2)
    left, right = mnp.array(a, dtype="float64"), mnp.array(b, dtype="float64")
    left.attach_grad()
    with autograd.record():
        result = fast_einsum("bij,bjk->bik", left, right)
    result.backward(mnp.array(weight, dtype="float64"))
    np.testing.assert_allclose(left.grad.asnumpy()[0], np.einsum("bik,bjk->ij", weight, b), rtol=1e-9)


# ---- hybridized blocks


class Block(gluon.HybridBlock):
    def __init__(self, einsum: Callable[..., Any], equation: str) -> None:
        super().__init__()
        self.einsum = einsum
        self.equation = equation

    def forward(self, *operands: Any) -> Any:
        return self.einsum(self.equation, *operands)


ANY_SIZE = [
    *EQUATIONS,
    "ij,jk->ik",
    "iij,jk->ki",
    "ij,kj->",
    "ij,->ji",
    "ii->i",
    "cij,cj->cij",
    "abcdei,abcdej->abcdeij",
]


def other_sizes(equation: str) -> Iterator[dict[str, int]]:
    """Lengths of the axes: each axis in turn longer, of length 1, and empty; then all of them."""
    labels = sorted(set(equation) - set("->,"))
    usual = {label: 2 + at % 2 for at, label in enumerate(labels)}
    yield usual
    yield from ({**usual, label: size} for label in labels for size in (4, 1, 0))
    yield from (dict.fromkeys(labels, size) for size in (1, 0))


def values_of(equation: str, sizes: dict[str, int]) -> list[Array]:
    terms = equation.partition("->")[0].split(",")
    return [np.rint(numbers(*(sizes[at] for at in term), seed=seed)) for seed, term in enumerate(terms)]


@pytest.mark.parametrize("traced", [{}, 1, 0], ids=["usual", "ones", "empty"])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("equation", ANY_SIZE)
def test_hybridized_block_takes_any_size(equation: str, dtype: str, traced: Any) -> None:
    block = Block(fast_einsum, equation)
    block.hybridize()
    all_sizes = list(other_sizes(equation))
    first = {label: 3 if traced == {} else traced for label in all_sizes[0]}
    for sizes in (first, *all_sizes):
        values = values_of(equation, sizes)
        wanted = np.einsum(equation, *values)
        check(block(*(mnp.array(value, dtype=dtype) for value in values)), wanted, dtype)


@pytest.mark.parametrize("equation", ANY_SIZE)
def test_gradients_of_a_hybridized_block(equation: str) -> None:
    if any(len(set(term)) < len(term) for term in equation.partition("->")[0].split(",")):
        pytest.skip("the reference takes no diagonals")
    block = Block(fast_einsum, equation)
    block.hybridize()
    for sizes in other_sizes(equation):
        values = values_of(equation, sizes)
        operands = [mnp.array(value, dtype="float64") for value in values]
        weight = numbers(*np.einsum(equation, *values).shape, seed=9)
        for operand in operands:
            operand.attach_grad()
            if operand.size:
                operand.grad[()] = np.nan  # must be written, where there is nothing to sum, too
        with autograd.record():
            result = block(*operands)
        result.backward(mnp.array(weight, dtype="float64"))
        for operand, wanted in zip(operands, gradients(equation, values, weight), strict=True):
            np.testing.assert_allclose(operand.grad.asnumpy(), wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize(
    ("equation", "traced", "later"),
    [
        ("bij,bjk->bik", [(1, 2, 3), (4, 3, 5)], [(4, 2, 3), (4, 3, 5)]),
        ("bij,bjk->bik", [(4, 2, 3), (1, 3, 5)], [(1, 7, 3), (4, 3, 5)]),
        ("ij,jk->ik", [(2, 1), (3, 4)], [(5, 3), (3, 4)]),
        ("ij,jk->ik", [(2, 1), (3, 4)], [(5, 0), (0, 4)]),
        ("bij,bj->bij", [(3, 2, 1), (3, 4)], [(3, 2, 4), (3, 4)]),
        ("bid,bjd,bd->bij", [(1, 2, 3), (4, 5, 3), (4, 1)], [(4, 7, 6), (4, 1, 6), (4, 6)]),
        ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)], [(6, 1, 7), (6, 7, 3)]),
    ],
)
def test_broadcast_axes_of_a_patched_block_and_its_export(
    equation: str, traced: Any, later: Any, optimize: bool, tmp_path: Path
) -> None:
    names = [f"data{at}" for at in range(len(traced))]
    with patched("mxnet"):
        block = Block(lambda *arguments: mnp.einsum(*arguments, optimize=optimize), equation)
        block.hybridize()
        run = block
        for shapes in (traced, later, traced):
            values = [np.rint(numbers(*shape)) for shape in shapes]
            check(run(*map(mnp.array, values)), np.einsum(equation, *values), "float32")
            if run is block:
                block.export(str(tmp_path / "block"))
                run = gluon.SymbolBlock.imports(str(tmp_path / "block-symbol.json"), names, None)


def raised(run: Callable[..., Any], *operands: Any) -> None:
    run(*operands)
    npx.waitall()


COMPOSED: list[tuple[str, dict[str, int], list[Any], list[Any], list[Any] | None]] = [
    # equation, sizes, shapes to trace, other shapes, and shapes that MXNet refuses
    (
        "b i (h d), b j (h d) -> b h i j",
        {"h": 4},
        [(2, 6, 8), (2, 5, 8)],
        [(3, 4, 16), (3, 7, 16)],
        [(2, 6, 6), (2, 5, 6)],
    ),
    ("b h i j, b h j d -> b i (h d)", {}, [(2, 4, 6, 5), (2, 4, 5, 3)], [(4, 2, 5, 6), (4, 2, 6, 3)], None),
    ("b i j -> b 1 (i j)", {}, [(2, 4, 6)], [(4, 2, 6)], None),
    ("a b -> 1 (a b)", {}, [(1, 6)], [(3, 4)], None),
    ("b (x y z) -> y b (z x)", {"x": 2, "z": 3}, [(2, 12)], [(3, 24)], [(3, 25)]),
    ("b (x y) -> y b x", {"x": 2, "y": 3}, [(2, 6)], [(5, 6)], [(2, 12)]),
    ("... (x y) 1 -> y ... 1 x", {"x": 2}, [(2, 3, 12, 1)], [(3, 2, 24, 1)], [(2, 3, 12, 2)]),
    ("b (h d), h -> b (h d)", {"h": 4}, [(2, 8), (4,)], [(3, 12), (4,)], [(3, 12), (3,)]),
    ("i (x i) -> i x", {"x": 4}, [(3, 12)], [(4, 16)], [(4, 12)]),
    ("b (h d), b h d -> b d h", {}, [(2, 1), (2, 4, 3)], [(5, 1), (5, 2, 6)], [(2, 12), (2, 4, 3)]),
    ("a (b c) -> c (a b)", {"b": 2}, [(0, 6)], [(3, 4)], None),
    ("row col -> col row", {"row": 4}, [(4, 3)], [(4, 5)], [(6, 4)]),
    ("... col -> col ...", {"col": 3}, [(4, 3)], [(5, 3)], [(5, 4)]),
]


@pytest.mark.parametrize("imported", [False, True])
@pytest.mark.parametrize(("equation", "sizes", "traced", "later", "wrong"), COMPOSED)
def test_compositions_hold_for_all_sizes(
    equation: str, sizes: dict[str, int], traced: Any, later: Any, wrong: Any, imported: bool, tmp_path: Path
) -> None:
    block: Any = Block(lambda equation, *arrays: fast_einsum(equation, *arrays, **sizes), equation)
    block.hybridize()
    for shapes in (traced, later, traced):
        values = [numbers(*shape, seed=seed) for seed, shape in enumerate(shapes)]
        check(block(*map(mnp.array, values)), fast_einsum(equation, *values, **sizes), "float32")
        if imported and isinstance(block, Block):
            block.export(str(tmp_path / "block"))
            names = [f"data{at}" for at in range(len(traced))] if len(traced) > 1 else ["data"]
            block = gluon.SymbolBlock.imports(str(tmp_path / "block-symbol.json"), names, None)
    if wrong is not None:
        with pytest.raises(mxnet.MXNetError):
            raised(block, *[mnp.array(numbers(*shape)) for shape in wrong])


def test_gradients_of_a_composition_in_a_block() -> None:
    equation = "b i (h d), b j (h d) -> b j (i h)"
    block = Block(lambda equation, *arrays: fast_einsum(equation, *arrays, h=2), equation)
    block.hybridize()
    for sizes in ((2, 3, 5, 4), (3, 4, 2, 6)):
        batch, rows, columns, depth = sizes
        a, b = numbers(batch, rows, depth), numbers(batch, columns, depth, seed=1)
        operands = [mnp.array(a), mnp.array(b)]
        for operand in operands:
            operand.attach_grad()
        with autograd.record():
            result = block(*operands)
        weight = numbers(*result.shape, seed=2)
        result.backward(mnp.array(weight))
        found = fast_einsum("b j (i h), b j (h d) -> b i (h d)", weight, b, h=2)
        check(operands[0].grad, found, "float32")


def test_a_block_without_the_sizes_that_it_needs_is_refused() -> None:
    block = Block(fast_einsum, "b (h d), h -> b d")
    block.hybridize()
    with pytest.raises(ShapeError, match=r"axis 1 of operand 0, \(h d\), is split into h and d .* as in h=8"):
        block(mnp.ones((2, 6)), mnp.ones((3,)))
    assert fast_einsum("b (h d), h -> b d", mnp.ones((2, 6)), mnp.ones((3,))).shape == (2, 2)


def test_attention_in_a_block_is_refused() -> None:
    q = mnp.ones((2, 4, 6, 8))
    for function in (lambda q: attention(q, q, q, layout="bshd"), lambda q: scaled_dot_product_attention(q, q, q)):
        function(q)
        block = Block(lambda _, q, function=function: function(q), "")
        block.hybridize()
        with pytest.raises(OperandError, match="MXNet traces the call for arrays of any size"):
            block(q)


def test_plans_for_tracing_and_for_computing_are_kept_apart() -> None:
    equation = "bind,jnd->bnij"
    values = [numbers(*shape) for shape in shapes_of(equation)]
    operands = [mnp.array(value) for value in values]
    block = Block(fast_einsum, equation)
    block.hybridize()
    for run in (block, lambda *arrays: fast_einsum(equation, *arrays), block):
        check(run(*operands), np.einsum(equation, *values), "float32")


def test_calls_between_calls_that_are_alike() -> None:
    """What was kept for one kind of call is used for no other, of other arrays or frameworks."""
    square, wide = (mnp.arange(size).reshape(3, -1).astype("float32") for size in (9, 12))
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("ij,jk->ik", (square, square)),
        ("ij,jk->ik", (square, wide)),
        ("ij,jk->ik", (square.astype("float64"), wide.astype("float64"))),
        ("ij,jk->ik", (square.asnumpy(), wide.asnumpy())),
        ("ij,jk,kl->il", (square, square, wide)),
        ("ij,jk,kl->il", (square, square, square)),
        ("ij->ji", (wide,)),
        ("ij->ji", (wide.asnumpy(),)),
    ]

    def host(array: Any) -> Array:
        return array if isinstance(array, np.ndarray) else array.asnumpy()

    for _ in range(3):
        for equation, operands in calls:
            found = fast_einsum(equation, *operands)
            assert type(found) is type(operands[0])
            expected = np.einsum(equation, *map(host, operands))
            np.testing.assert_allclose(host(found), expected)
            assert host(found).dtype == expected.dtype
    with pytest.raises(OperandError, match="two dtypes"):
        fast_einsum("ij,jk->ik", square, wide.astype("float64"))


def test_patched() -> None:
    equation = "bind,bjnd->bnij"
    values = [numbers(*shape) for shape in shapes_of(equation)]
    operands = [mnp.array(value) for value in values]
    native = mnp.einsum
    with patched("mxnet"):
        assert mnp.einsum.__wrapped__
        check(mnp.einsum(equation, *operands), np.einsum(equation, *values), "float32")
        block = Block(lambda *arguments: mnp.einsum(*arguments), equation)
        block.hybridize()
        check(block(*operands), np.einsum(equation, *values), "float32")
    assert mnp.einsum is native
    assert not hasattr(native, "__wrapped__")
