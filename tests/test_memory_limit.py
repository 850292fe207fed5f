"""A call with a memory limit gives what it gives without, in pieces, and allocates no more."""

import os
import pickle
import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
from held_memory import PYTHON, peak_of, torch_peak_of
from hypothesis import given
from hypothesis import strategies as st
from optional_mxnet import mxnet_or_skip

import einops_fast
from einops_fast import autotune, contract_expression, explain, fast_einsum, limited
from einops_fast.backends import get_backend
from einops_fast.errors import EinsumError, OperandError, ShapeError
from einops_fast.runtime.limits import read_bytes
from einops_fast.runtime.plan_cache import clear_plans
from einops_fast.runtime.tuning import current_mode

CASES: dict[str, tuple[str, tuple[tuple[int, ...], ...], int]] = {
    "chain": ("ij,jk,kl->il", ((400, 300), (300, 500), (500, 200)), 1_000_000),
    "wide product of three": ("bi,bj,bk->ijk", ((50, 40), (50, 50), (50, 60)), 1_250_000),
    "peps": ("iajb,jbkc,kcld->iald", ((12, 14, 12, 14), (12, 14, 10, 11), (10, 11, 9, 8)), 160_000),
    "ring": ("ab,bc,cd,da->", ((100, 100),) * 4, 100_000),
    "integrals": ("ia,jb,iajb->", ((40, 40), (40, 40), (40, 40, 40, 40)), 40_000),
    "outer product that is summed": ("i,j,k->", ((300,), (300,), (300,)), 40_000),
    "diagonal": ("ii,ij,jk->k", ((300, 300), (300, 200), (200, 100)), 60_000),
    "one axis for many": ("...ij,...jk->...ik", ((3, 1, 200, 30), (1, 4, 30, 200)), 4_000_000),
    "sum of a product": ("abc,abd->cd", ((20, 30, 100), (20, 30, 120)), 800_000),
}
"""Equation, shapes in float64, and a limit in bytes."""


def operands(name: str, dtype: Any = np.float64) -> tuple[str, list[Any], int]:
    equation, shapes, limit = CASES[name]
    generator = np.random.default_rng(0)
    return equation, [generator.standard_normal(shape).astype(dtype) for shape in shapes], limit


@pytest.mark.parametrize("name", CASES)
def test_results_are_the_same_and_memory_is_kept_to(name: str) -> None:
    equation, arrays, limit = operands(name)
    found, peak = peak_of(lambda: fast_einsum(equation, *arrays, memory_limit=limit))
    assert peak <= limit + PYTHON
    exact = np.einsum(equation, *arrays, optimize=True)
    np.testing.assert_allclose(found, exact, rtol=1e-9, atol=1e-9 * float(np.abs(exact).max()))
    memory = explain(equation, *arrays, memory_limit=limit).to_dict()["memory"]
    assert memory["peak_bytes"] <= limit
    assert memory["flops_ratio"] >= 1


NETWORKS = st.lists(st.text("abcdefg", min_size=1, max_size=4), min_size=2, max_size=9)


@given(NETWORKS, st.lists(st.sampled_from([1, 2, 3, 5, 7]), min_size=7, max_size=7), st.data())
def test_any_network_is_cut_into_pieces_of_any_length(terms: list[str], sizes: list[int], data: Any) -> None:
    of, labels = dict(zip("abcdefg", sizes, strict=True)), sorted({*"".join(terms)})
    output = "".join(data.draw(st.permutations(data.draw(st.lists(st.sampled_from(labels), unique=True, max_size=3)))))
    generator = np.random.default_rng(7)
    ones = data.draw(st.sets(st.tuples(st.integers(0, len(terms) - 1), st.sampled_from(labels)), max_size=2))
    arrays = [
        generator.standard_normal([1 if (at, label) in ones else of[label] for label in term])
        for at, term in enumerate(terms)
    ]
    equation = f"{','.join(terms)}->{output}"
    exact = np.einsum(equation, *arrays)
    peak = explain(equation, *arrays, memory_limit=1 << 40).to_dict()["memory"]["peak_bytes"]
    for part in (0.9, 0.6, 0.3):
        try:
            found = fast_einsum(equation, *arrays, memory_limit=max(int(part * peak), 8))
        except EinsumError as error:
            assert "is too little for" in str(error)  # noqa: PT017 - or else the result is right
            break
        np.testing.assert_allclose(found, exact, rtol=1e-9, atol=1e-9)


def test_float16_is_added_up_in_float32() -> None:
    generator = np.random.default_rng(1)
    left, right = (generator.random((8, 20_000)).astype(np.float16) for _ in range(2))
    equation = "ik,jk,ij->"
    weights = np.ones((8, 8), np.float16)
    exact = np.einsum(equation, *[each.astype(np.float64) for each in (left, right, weights)], optimize=True) / 1e4
    found = fast_einsum(equation, left / 100, right / 100, weights, memory_limit=20_000)
    assert found.dtype == np.float16
    assert abs(float(found) - exact) <= 4e-3 * exact


@pytest.mark.parametrize("options", [{"order": "F"}, {"order": "C"}, {"dtype": "float32", "casting": "same_kind"}])
def test_options_are_as_without_a_limit(options: dict[str, Any]) -> None:
    equation, arrays, limit = operands("chain")
    found = fast_einsum(equation, *arrays, memory_limit=limit, **options)
    plain = fast_einsum(equation, *arrays, **options)
    assert found.dtype == plain.dtype
    assert found.flags.f_contiguous == (options.get("order") == "F")
    np.testing.assert_allclose(found, plain, rtol=1e-3, atol=1e-3 * float(np.abs(plain).max()))


def test_out_may_be_an_operand_and_a_wider_one_says_what_is_computed_in() -> None:
    x = np.random.default_rng(2).standard_normal((100, 100))
    expected = x @ x @ x
    assert fast_einsum("ij,jk,kl->il", x, x, x, out=x, memory_limit=130_000) is x
    np.testing.assert_allclose(x, expected)
    x, out, plain = (x[:64, :64] / np.abs(x).max()).astype(np.float32), np.zeros((64, 64)), np.zeros((64, 64))
    fast_einsum("ij,jk,kl->il", x, x, x, out=out, memory_limit=120_000)
    np.testing.assert_allclose(out, fast_einsum("ij,jk,kl->il", x, x, x, out=plain), rtol=1e-12, atol=1e-12)


def test_axes_without_elements() -> None:
    for limit in (1, 10_000):
        assert fast_einsum("ij,jk->k", np.ones((5, 0)), np.ones((0, 0)), memory_limit=limit).shape == (0,)
    found = fast_einsum("ij,jk->ik", np.ones((5, 0)), np.ones((0, 4)), memory_limit=1000)
    assert (found == np.zeros((5, 4))).all()


@pytest.mark.parametrize(("given", "found"), [(7, 7), (np.int64(9), 9), ("2GiB", 2 << 30), ("0.5 kB", 500), ("12", 12)])
def test_limits_are_numbers_of_bytes(given: Any, found: int) -> None:
    assert read_bytes(given) == found


@pytest.mark.parametrize("given", [0, -1, True, 1.5, "2 gigs", "GiB", "1..5MB", [1]])
def test_what_is_no_limit(given: Any) -> None:
    with pytest.raises(EinsumError, match="memory_limit is a number of bytes, or a text such as '2GiB'"):
        fast_einsum("i,i->", np.ones(3), np.ones(3), memory_limit=given)


def test_too_little_is_told_with_what_it_takes() -> None:
    with pytest.raises(EinsumError, match=r"memory_limit: 9.77 KiB is too little for 'ij,jk->ik'.*take 703 KiB"):
        fast_einsum("ij,jk->ik", np.ones((300, 3)), np.ones((3, 300)), memory_limit="10kB")
    with pytest.raises(ShapeError, match="axis 'j'"):
        fast_einsum("ij,jk->ik", np.ones((3, 4)), np.ones((5, 3)), memory_limit="10kB")


def test_limits_of_blocks_functions_and_expressions() -> None:
    equation, arrays, limit = operands("ring")
    exact, most = peak_of(lambda: fast_einsum(equation, *arrays))
    assert most > limit + PYTHON

    def in_a_block() -> Any:
        with einops_fast.memory_limit(f"{limit / 1000} kB"):
            return fast_einsum(equation, *arrays)

    @einops_fast.memory_limit(limit)
    def steps() -> Any:
        yield fast_einsum(equation, *arrays)

    plain = contract_expression(equation, *arrays)
    expression = contract_expression(equation, *arrays, memory_limit=limit)
    constants = contract_expression(equation, *arrays, constants=[0, 2], memory_limit=limit)
    calls = [
        in_a_block, lambda: next(steps()), lambda: expression(*arrays),
        lambda: pickle.loads(pickle.dumps(expression))(*arrays), lambda: constants(*arrays[1::2]),
        einops_fast.memory_limit(limit)(lambda: plain(*arrays)),
    ]  # fmt: skip
    for call in calls:
        found, peak = peak_of(call)
        np.testing.assert_allclose(found, exact)
        assert peak <= limit + PYTHON
    assert peak_of(lambda: plain(*arrays))[1] > limit + PYTHON
    with pytest.raises(EinsumError, match="memory_limit is a number of bytes"):
        einops_fast.memory_limit("much")


def test_a_block_leaves_alone_what_has_no_pieces() -> None:
    objects = np.array([[1, 2], [3, 4]], object)
    with einops_fast.memory_limit(1000):
        assert (fast_einsum("ij,jk,kl->il", objects, objects, objects) == objects @ objects @ objects).all()
        with pytest.raises(EinsumError, match="too little"):
            fast_einsum("i,j->ij", np.ones(100), np.ones(100))


def test_the_environment_sets_a_limit() -> None:
    program = """
import numpy as np, einops_fast
try:
    print(einops_fast.fast_einsum("i,j->ij", np.ones(100), np.ones(100)).shape)
except einops_fast.EinsumError as error:
    print(error)
"""
    for limit, words in (
        ("1 MB", "(100, 100)"),
        ("10 kB", "too little"),
        ("10 k", "EINOPS_FAST_MEMORY_LIMIT is"),
    ):
        environment = {**os.environ, "EINOPS_FAST_MEMORY_LIMIT": limit}
        shown = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        assert words in shown.stdout, shown.stderr


@pytest.mark.parametrize("as_expression", [False, True])
@pytest.mark.parametrize(
    "error",
    [MemoryError("a"), *map(RuntimeError, ("CUDA out of memory.", "[alloc_cpu.cpp] can't allocate memory: you tried"))],
)
def test_out_of_memory_is_answered_by_pieces(
    monkeypatch: pytest.MonkeyPatch, error: Exception, as_expression: bool
) -> None:
    equation, arrays, _ = operands("ring")
    exact, backend, failures = fast_einsum(equation, *arrays), get_backend("numpy"), []

    def matmul(a: Any, b: Any, **options: Any) -> Any:
        result = np.matmul(a, b, **options)
        if result.size > 6000:
            failures.append(result.size)
            raise error
        return result

    clear_plans()
    monkeypatch.setattr(backend, "matmul", matmul)
    monkeypatch.setattr(backend, "room", lambda operands: 1 << 20)
    call = contract_expression(equation, *arrays) if as_expression else partial(fast_einsum, equation)
    for number in range(1, 3):
        np.testing.assert_allclose(call(*arrays), exact)
        assert len(failures) == number
    for where, name, worth in ((limited, "_UNASKED", 0.5), (backend, "room", lambda operands: None)):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, worth)  # pieces take too many FLOPs; nobody knows what is free
            with pytest.raises(type(error), match=str(error)[-8:]):
                call(*arrays)
    monkeypatch.undo()
    clear_plans()


# ---- torch


def tensors(name: str, **options: Any) -> tuple[str, list[Any], int]:
    torch: Any = pytest.importorskip("torch")
    equation, arrays, limit = operands(name)
    return equation, [torch.from_numpy(each).to(**options).requires_grad_() for each in arrays], limit


@pytest.mark.parametrize("name", ["chain", "ring", "diagonal", "one axis for many", "sum of a product"])
@pytest.mark.parametrize("complex_numbers", [False, True])
def test_gradients_are_made_a_piece_at_a_time(name: str, complex_numbers: bool, torch: Any) -> None:
    equation, given, _ = tensors(name, dtype=torch.complex128 if complex_numbers else torch.float64)
    item, result = given[0].element_size(), torch.einsum(equation, *given)
    held = max(sum(each.numel() for each in given), result.numel()) * item
    whole = explain(equation, *given, memory_limit=1 << 40).to_dict()["memory"]["peak_bytes"]
    limit = (held + 3 * whole) // 4
    found = fast_einsum(equation, *given, memory_limit=limit)
    assert explain(equation, *given, memory_limit=limit).to_dict()["memory"]["pieces"] > 1
    torch.testing.assert_close(found, result)
    cotangent = torch.randn_like(result)
    own, native = (torch.autograd.grad(each, given, cotangent, retain_graph=True) for each in (found, result))
    for one, other in zip(own, native, strict=True):
        torch.testing.assert_close(one, other)


ALLOCATED = {
    "copies for gradients": ("cfe,dc,fac->dea", {"a": 5, "c": 40, "d": 64, "e": 64, "f": 5}, "complex64", True),
    "products for gradients": ("bc,cc,cb->b", {"b": 64, "c": 64}, "float64", True),
    "products of halves": (",babc,cc,cac,,,ccc->c", {"a": 32, "b": 2, "c": 32}, "bfloat16", False),
    "gradients of halves": ("acb,bc,ba->ab", {"a": 16, "b": 16, "c": 16}, "bfloat16", True),
    "sums of halves": ("fbc,add,->", {"f": 20, "b": 17, "c": 3, "a": 17, "d": 17}, "float16", False),
    "small parts made of large ones": (
        "agag,e,,bj,fbd,ec,ffd->", {"a": 3, "b": 17, "c": 32, "d": 17, "e": 32, "f": 32, "g": 32, "j": 8}, "float32",
        False,
    ),
}  # fmt: skip
"""Equation, sizes, dtype, and whether gradients are asked for."""


@pytest.mark.parametrize("name", ALLOCATED)
def test_torch_allocates_no_more(name: str, torch: Any) -> None:
    equation, sizes, dtype, trained = ALLOCATED[name]
    terms = equation.split("->")[0].split(",")
    shapes = [[sizes[label] for label in term] for term in terms]
    given = [torch.rand(shape).to(getattr(torch, dtype)).requires_grad_(trained) for shape in shapes]
    whole = explain(equation, *given, memory_limit=1 << 40).to_dict()["memory"]["peak_bytes"]
    for part in (1.0, 0.7):
        limit = int(part * whole)
        found, peak = torch_peak_of(lambda limit=limit: fast_einsum(equation, *given, memory_limit=limit))
        assert peak <= limit
        if trained:
            seed = torch.ones_like(found)
            _, peak = torch_peak_of(lambda found=found, seed=seed: torch.autograd.grad(found, given, seed))
            assert peak <= limit


def test_gradients_of_some_operands_under_autocast(torch: Any) -> None:
    equation, (a, b, c), limit = tensors("chain", dtype=torch.float32)
    b, limit = b.detach(), 1_600_000
    with torch.autocast("cpu", torch.bfloat16):
        found = fast_einsum(equation, a, b, c, memory_limit=limit)
        native = torch.einsum(equation, a, b, c)
    assert found.dtype == native.dtype == torch.bfloat16
    for one, other in zip(
        torch.autograd.grad(found.sum(), (a, c)), torch.autograd.grad(native.sum(), (a, c)), strict=True
    ):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=5e-2, atol=5e-2 * float(other.abs().max()))


def test_what_pieces_can_not_do_is_refused(torch: Any) -> None:
    x = torch.randn(60, 60, dtype=torch.float64, requires_grad=True)

    def ring(x: Any) -> Any:
        return fast_einsum("ab,bc,cd,da->", x, x, x, x, memory_limit=200_000)

    with pytest.raises(EinsumError, match="can't be differentiated again: give no limit"):
        torch.autograd.grad(ring(x), x, create_graph=True)
    with pytest.raises(OperandError, match="memory_limit isn't for code that is traced"):
        torch.jit.trace(ring, x.detach())


def test_compiled_code_leaves_such_calls_as_they_are(torch: Any) -> None:
    x = torch.randn(40, 40)

    def program(x: Any) -> Any:
        return fast_einsum("ij,jk->ik", x + 1, x, memory_limit=16_000) * 2

    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(program, backend="eager")(x), program(x))


@pytest.mark.parametrize(
    ("mode", "within"), [("wait", "auto"), ("always", "auto"), ("never", "never"), ("reproducible", "reproducible")]
)
def test_nothing_is_measured_beside_a_call(mode: Any, within: str, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    monkeypatch.setattr(limited, "fast_einsum", lambda *given, **options: modes.append(current_mode()))
    for options in ({"autotune": mode}, {}):
        with autotune("auto" if options else mode):
            fast_einsum("ij,jk->ik", np.ones((3, 4)), np.ones((4, 5)), memory_limit="1GB", **options)
    assert modes == [within] * 2


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_allocator_of_a_gpu_sees_no_more(dtype: str, torch: Any) -> None:
    given = list(torch.randn(3, 64, 512, device="cuda", dtype=getattr(torch, dtype)))
    equation, limit = "bi,bj,bk->ijk", (512**3 * given[0].element_size() * 3) // 2 + (64 << 20)
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        found = fast_einsum(equation, *given, memory_limit=limit)
        assert torch.cuda.max_memory_allocated() - before <= limit
    exact = torch.einsum(equation, *[each.double() for each in given])
    assert (found.double() - exact).abs().max() <= 3e-2 * exact.abs().max()


# ---- MXNet


def test_mxnet() -> None:
    mxnet = mxnet_or_skip()
    equation, arrays, limit = operands("chain", np.float32)
    found = fast_einsum(equation, *[mxnet.np.array(each) for each in arrays], memory_limit=limit)
    np.testing.assert_allclose(found.asnumpy(), np.einsum(equation, *arrays, optimize=True), rtol=1e-3, atol=1e-2)
