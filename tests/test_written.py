"""`out=` and `beta=`: the last step of a plan writes to the array itself, whatever its strides, if a library can."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attention_arrays import arrays_of, numbers

from einops_fast import OperandError, contract_expression, fast_einsum, memory_limit, patched

N = 160

STEPS: dict[str, tuple[str, tuple[tuple[int, ...], ...]]] = {
    "product": ("ij,jk->ik", ((N, 30), (30, N))),
    "transposed product": ("ij,jk->ki", ((N, 30), (30, N))),
    "merged rows": ("aij,jk->aik", ((4, 40, 30), (30, N))),
    "two products": ("ij,jk,kl->il", ((N, 8), (8, 8), (8, N))),
    "batch": ("bij,bjk->bik", ((4, 80, 16), (4, 16, 90))),
    "two batch axes": ("bhij,bhjk->bhik", ((2, 3, 64, 8), (2, 3, 8, 72))),
    "batch between": ("bihd,bjhd->bihj", ((2, 96, 3, 8), (2, 96, 3, 8))),
    "heads": ("bihd,bjhd->bhij", ((2, 96, 3, 8), (2, 96, 3, 8))),
    "batch of one operand": ("bhij,hjk->bhik", ((2, 3, 64, 8), (3, 8, 72))),
    "elements": ("ij,ij->ij", ((N, N), (N, N))),
    "outer": ("i,j->ij", ((N,), (N,))),
    "sum": ("ijk->ik", ((N, 3, N),)),
    "view": ("ij->ji", ((N, N),)),
    "diagonal": ("iij->ji", ((N, N, N),)),
}


def _layouts(shape: tuple[int, ...]) -> dict[str, tuple[np.ndarray[Any, Any], tuple[Any, ...]]]:
    """Arrays, and what takes an array of this shape of them."""
    whole = (slice(None),) * (len(shape) - 1)
    return {
        "C": (np.full(shape, 7.0, np.float32), (...,)),
        "slice": (np.full((*shape[:-1], shape[-1] + 9), 7.0, np.float32), (*whole, slice(4, 4 + shape[-1]))),
        "apart": (np.full((*shape[:-1], 2 * shape[-1]), 7.0, np.float32), (*whole, slice(None, None, 2))),
        "rows apart": (np.full((2 * shape[0], *shape[1:]), 7.0, np.float32), (slice(1, None, 2),)),
        "F": (np.full(shape, 7.0, np.float32, order="F"), (...,)),
    }


def _operands(name: str, dtype: Any = np.float32) -> tuple[str, list[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    equation, shapes = STEPS[name]
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(shape).astype(dtype) for shape in shapes]
    wide = np.result_type(dtype, np.float64)
    return equation, arrays, np.einsum(equation, *[array.astype(wide) for array in arrays], optimize=True)


def _large_results(call: Callable[[], Any], elements: int) -> list[str]:
    """Names of torch's operators that make a tensor of so many elements, in memory of its own."""
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    made: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = {each.untyped_storage().data_ptr() for each in (*args, *(kwargs or {}).values())
                     if isinstance(each, torch.Tensor)}  # fmt: skip
            result = function(*args, **(kwargs or {}))
            found = result if isinstance(result, (tuple, list)) else [result]
            made.extend(
                str(function)
                for each in found
                if isinstance(each, torch.Tensor)
                and each.numel() >= elements
                and each.untyped_storage().data_ptr() not in given
            )
            return result

    with Watch():
        call()
    return made


def _allocates(framework: str, call: Callable[[], Any], result: np.ndarray[Any, Any]) -> bool:
    """Return whether a call allocates what a result of float32 takes, or nearly; NumPy's ufuncs have small buffers."""
    if framework == "torch":
        return bool(_large_results(call, result.size))
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1] > 3 * result.size
    finally:
        tracemalloc.stop()


BLAS_WRITES = {  # where rows or columns have no gaps between elements, and axes that are one axis of a product merge
    "C": set(STEPS),
    "slice": set(STEPS),
    "apart": set[str](),
    "rows apart": set(STEPS) - {"merged rows"},
    "F": {"product", "transposed product", "two products"},
}
ANY_STRIDES = {"elements", "outer", "sum", "view", "diagonal"}


@pytest.mark.parametrize("beta", [0, 1, -0.5])
@pytest.mark.parametrize("layout", BLAS_WRITES)
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_last_step_writes_to_out(framework: str, name: str, layout: str, beta: float) -> None:
    equation, arrays, wanted = _operands(name)
    array, place = _layouts(wanted.shape)[layout]
    before = array.copy()
    given, whole = arrays_of(framework, tuple(arrays)), arrays_of(framework, array)
    out = whole[place]
    for _ in range(2):  # by a new plan and by the same
        whole[...] = 7.0
        assert fast_einsum(equation, *given, out=out, beta=beta) is out
        before[place] = 7.0 * beta + wanted
        np.testing.assert_allclose(numbers(whole), before, rtol=1e-4, atol=1e-4)  # and nothing beside it
    if name in BLAS_WRITES[layout] | ANY_STRIDES and (beta == 0 or (framework == "torch" and name != "sum")):
        run = lambda: fast_einsum(equation, *given, out=out, beta=beta)  # noqa: E731
        assert not _allocates(framework, run, wanted)


@pytest.mark.parametrize("dtype", ["float64", "complex64", "complex128", "float16", "int32"])
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_all_dtypes(framework: str, name: str, dtype: str) -> None:
    equation, arrays, _ = _operands(name, dtype)
    plain, out = np.einsum(equation, *arrays), arrays_of(framework, np.ones(STEPS_RESULT[name], dtype))
    for beta in (0, 2):
        fast_einsum(equation, *arrays_of(framework, tuple(arrays)), out=out, beta=beta)
        wanted = plain if beta == 0 else 3 * plain
        exact = 2e-2 if dtype == "float16" else 1e-4
        np.testing.assert_allclose(numbers(out), wanted, rtol=exact, atol=exact * np.abs(plain).max())


STEPS_RESULT = {name: _operands(name)[2].shape for name in STEPS}


@pytest.mark.parametrize("beta", [0, 2])
@pytest.mark.parametrize("name", ["product", "elements", "view", "two products"])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_out_that_overlaps_an_operand_is_written_last(framework: str, name: str, beta: float) -> None:
    equation = STEPS[name][0]
    count = equation.count(",") + 1
    for begin, row in ((0, N), (3, N), (N * N, N)):  # itself, a part of it, what is beside it in the same memory
        memory = np.random.default_rng(0).standard_normal(2 * N * N)
        one, out = (memory[at : at + N * N].reshape(N, row) for at in (0, begin))
        wanted = np.einsum(equation, *[one.copy()] * count, optimize=True) + beta * out
        mine = arrays_of(framework, memory.copy())
        one, out = (mine[at : at + N * N].reshape(N, row) for at in (0, begin))
        fast_einsum(equation, *[one] * count, out=out, beta=beta)
        np.testing.assert_allclose(numbers(out), wanted)
        if begin == N * N and framework == "torch":
            call = lambda one=one, out=out: fast_einsum(equation, *[one] * count, out=out, beta=beta)  # noqa: E731
            assert len(_large_results(call, N * N)) == (1 if name == "two products" else 0)


@pytest.mark.parametrize("layout", ["C", "slice", "F"])
def test_numpy_adds_large_products_in_blocks(layout: str) -> None:
    rows = 1600
    a, b = (np.random.default_rng(at).standard_normal((rows, 50)).astype(np.float32) for at in range(2))
    array, place = _layouts((rows, rows))[layout]
    out, wanted = array[place], a @ b.T
    for beta in (1, -2.5):
        out[...] = 3
        call = lambda beta=beta: fast_einsum("ij,kj->ik", a, b, out=out, beta=beta)  # noqa: E731
        call()
        np.testing.assert_allclose(out, wanted + 3 * beta, rtol=1e-3, atol=1e-3)
        assert not _allocates("numpy", call, wanted)


@pytest.fixture
def grouped() -> tuple[str, tuple[Any, ...], np.ndarray[Any, Any]]:
    q, k = (np.random.default_rng(at).standard_normal((2, 96, 24)).astype(np.float32) for at in range(2))
    heads = [each.reshape(2, 96, 3, 8) for each in (q, k)]
    return "b i (h d), b j (h d) -> b i (h j)", (q, k), np.einsum("bihd,bjhd->bihj", *heads).reshape(2, 96, -1)


@pytest.mark.parametrize("beta", [0, 0.5])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_grouped_axes(framework: str, beta: float, grouped: Any) -> None:
    equation, arrays, wanted = grouped
    given, whole = arrays_of(framework, arrays), arrays_of(framework, np.ones((2, 96, 300), np.float32))
    out = whole[..., 6:-6]
    call = lambda: fast_einsum(equation, *given, out=out, beta=beta, h=3)  # noqa: E731
    assert call() is out
    np.testing.assert_allclose(numbers(out), wanted + beta, rtol=1e-4, atol=1e-4)
    assert (numbers(whole)[..., :6] == 1).all()
    assert (framework == "numpy" and beta) or not _allocates(framework, call, wanted)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_other_ways_to_call(framework: str) -> None:
    equation, arrays, wanted = _operands("product")
    given, out = arrays_of(framework, tuple(arrays)), arrays_of(framework, np.zeros((N, N), np.float32))
    expression = contract_expression(equation, *[each.shape for each in arrays])
    calls: list[Callable[[], Any]] = [
        lambda: expression(*given, out=out),
        lambda: fast_einsum(equation, list(given), out=out),
        lambda: fast_einsum(given[0], [0, 1], given[1], [1, 2], [0, 2], out=out),
        lambda: fast_einsum(equation, *given, out=out, optimize="greedy"),
        lambda: fast_einsum(equation, *given, out=out, dtype=given[0].dtype, memory_limit="1GiB"),
    ]
    for call in calls:
        out[...] = 0
        assert call() is out
        np.testing.assert_allclose(numbers(out), wanted, rtol=1e-4, atol=1e-4)
        assert not _allocates(framework, call, wanted)


@pytest.mark.parametrize("beta", [0, 1.5])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("equation", ["ij,jk,kl->il", "ij,jk->k", "ij,jk,kl->"])
def test_pieces_are_put_into_out(framework: str, equation: str, beta: float) -> None:
    generator = np.random.default_rng(0)
    arrays = tuple(generator.standard_normal((200, 200)).astype(np.float32) for _ in range(equation.count(",") + 1))
    wanted = np.asarray(np.einsum(equation, *arrays, optimize=True), np.float64)
    out = arrays_of(framework, np.ones(wanted.shape, np.float32))
    with memory_limit(240_000 if equation.endswith("il") else 100_000):
        assert fast_einsum(equation, *arrays_of(framework, arrays), out=out, beta=beta) is out
    np.testing.assert_allclose(numbers(out), wanted + beta, rtol=1e-3, atol=1e-2)


def test_pieces_take_no_memory_for_the_result() -> None:
    x, out = np.random.default_rng(0).standard_normal((300, 300)), np.zeros((300, 300))
    limit = 1_000_000  # of results of 720,000 bytes
    call = lambda **options: fast_einsum("ij,jk,kl->il", x, x, x, memory_limit=limit, **options)  # noqa: E731
    peaks = []
    for options in ({}, {"out": out}, {"out": out, "beta": 1}):
        call(**options)
        tracemalloc.start()
        call(**options)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks[1:]) < peaks[0] - 500_000


class TestTorch:
    torch = pytest.importorskip("torch")

    def test_gradients_flow_through_out(self) -> None:
        torch = self.torch
        a, b = torch.randn(N, N, requires_grad=True), torch.randn(N, N)
        for beta in (0, 2):
            out = torch.ones(N, N)
            fast_einsum("ij,jk->ik", a, b, out=out, beta=beta)
            assert out.requires_grad
            torch.testing.assert_close(out, a @ b + beta, rtol=1e-4, atol=1e-4)
        with torch.no_grad():
            plain = torch.ones(N, N)
            call = lambda: fast_einsum("ij,jk->ik", a, b, out=plain)  # noqa: E731
            call()
            assert not _large_results(call, N * N)
        saved, twice = torch.randn(N, N, requires_grad=True), torch.ones(N, N)
        product = saved * twice
        fast_einsum("ij,jk->ik", b, b, out=twice)  # after twice was saved: as torch's own functions, it says so
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()

    def test_views_that_stand_for_other_values(self) -> None:
        torch = self.torch
        z = torch.randn(N, N, dtype=torch.complex64)
        for view in (lambda t: t.conj(), lambda t: t.conj().imag):
            for beta in (0, 2):
                base = torch.ones(N, N, dtype=torch.complex64)
                out = view(base)
                wanted = view(z) @ view(z) + beta * out
                fast_einsum("ij,jk->ik", view(z), view(z), out=out, beta=beta)
                torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-4)

    def test_conjugates_are_read_as_they_are(self) -> None:
        torch = self.torch
        a, b = (torch.randn(4, N, N, dtype=torch.complex64) for _ in range(2))
        for equation, given in (
            ("ij,jk->ik", (a[0].conj(), b[0])), ("ij,kj->ik", (a[0], b[0].conj())), ("bij,bjk->bik", (a, b.conj())),
            ("bij,bkj->bik", (a.conj(), b.conj())), ("ij,jk,kl->il", (a[0].conj(), b[0], a[1].conj())),
        ):  # fmt: skip
            wanted = torch.einsum(equation, *[each.resolve_conj() for each in given])
            torch.testing.assert_close(fast_einsum(equation, *given), wanted, rtol=1e-3, atol=1e-3)

    def test_autocast_and_transforms(self) -> None:
        torch = self.torch
        a, b = torch.randn(N, N), torch.randn(N, N)
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                out = torch.zeros(N, N)
                fast_einsum("ij,jk->ik", a, b, out=out)
                assert torch.equal(out, torch.einsum("ij,jk->ik", a, b).float())
            fast_einsum("ij,jk->ik", a, b, out=out)
            torch.testing.assert_close(out, a @ b)
        stacked, outs = torch.randn(3, N, N), torch.zeros(3, N, N)
        torch.vmap(lambda one, out: fast_einsum("ij,jk->ik", one, b, out=out))(stacked, outs)
        torch.testing.assert_close(outs, stacked @ b, rtol=1e-4, atol=1e-4)

    def test_out_of_overlapping_elements_is_copied_to(self) -> None:
        torch = self.torch
        a = torch.randn(N, N)
        with pytest.raises(OperandError, match=r"^out is expanded"):
            fast_einsum("ij,jk->ik", a, a, out=torch.zeros(1, N).expand(N, N))


def test_subclasses_of_arrays_are_written_to(tmp_path: Any) -> None:
    equation, arrays, wanted = _operands("product")
    out = np.memmap(tmp_path / "out", np.float32, "w+", shape=(N, N))
    call = lambda: fast_einsum(equation, *arrays, out=out)  # noqa: E731
    assert call() is out
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-4)
    assert not _allocates("numpy", call, wanted)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_out_of_another_dtype(framework: str) -> None:
    equation, arrays, wanted = _operands("product")
    out = arrays_of(framework, np.zeros((N, N)))
    fast_einsum(equation, *arrays_of(framework, tuple(arrays)), out=out)
    np.testing.assert_allclose(numbers(out), wanted, rtol=1e-4, atol=1e-4)
    narrow = arrays_of(framework, np.zeros((N, N), np.float16))
    fast_einsum(equation, *arrays_of(framework, tuple(arrays)), out=narrow, casting="same_kind")
    np.testing.assert_allclose(numbers(narrow), wanted, rtol=2e-2, atol=2e-2)
    swapped = np.zeros((N, N), ">f4")
    fast_einsum(equation, *arrays, out=swapped)
    np.testing.assert_allclose(swapped, wanted, rtol=1e-4, atol=1e-4)


def test_numpy_einsum_where_it_is_patched() -> None:
    equation, arrays, wanted = _operands("product")
    out = np.zeros((N, N), np.float32)
    call = lambda: np.einsum(equation, *arrays, out=out, optimize=True)  # noqa: E731
    with patched("numpy"):
        for _ in range(2):
            assert call() is out
        assert not _allocates("numpy", call, wanted)
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-4)
