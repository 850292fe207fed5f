"""The replacement of a framework's einsum: that it is there, that it goes, that nobody can tell."""

import functools
import inspect
import pickle
import threading
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest
from patches import MODULES, NUMPY_NATIVE, random_arrays, runs_ours
from python_process import run_python

from einops_fast import OperandError, patch, patched, unpatch

pytestmark = pytest.mark.usefixtures("all_native")


# ---- in its place, and back


def test_the_function_stays_the_same_object_and_runs_ours(home):
    name, module = home
    modules = [import_module(module) for module in MODULES[name]]
    natives = [module.einsum for module in modules]
    assert not runs_ours(module)
    patch(name)
    patch(name, name)
    assert [module.einsum for module in modules] == natives
    assert all(runs_ours(module, einsum) for einsum in natives)  # references from before too
    for _ in range(2):
        unpatch(name)
        assert [module.einsum for module in modules] == natives
        assert not runs_ours(module)


def test_the_switch_and_nested_blocks_do_not_cut_each_other_short(home):
    name, module = home
    with patched(name):
        with patched(name):
            patch(name)
        assert runs_ours(module)
    assert runs_ours(module)
    with patched(name):
        unpatch(name)
        assert runs_ours(module)
    assert not runs_ours(module)


def test_looks_like_the_native_function(home):
    name, module = home
    einsum = module.einsum
    attributes = ("__name__", "__qualname__", "__module__", "__doc__")
    expected = [getattr(einsum, attribute) for attribute in attributes]
    signature, source = inspect.signature(einsum), inspect.getsource(einsum)
    with patched(name):
        assert [getattr(einsum, attribute) for attribute in attributes] == expected
        assert (inspect.signature(einsum), inspect.getsource(einsum)) == (signature, source)
        if name != "mxnet":
            assert pickle.loads(pickle.dumps(einsum)) is einsum
    assert (inspect.signature(einsum), inspect.getsource(einsum)) == (signature, source)


def test_without_names_all_imported_frameworks(home):
    _, module = home
    with patched():
        assert runs_ours(module)
        assert runs_ours(np)
    patch()
    assert runs_ours(module)
    unpatch()
    assert not runs_ours(module)


def test_without_names_imports_nothing():
    script = "import einops_fast, sys; einops_fast.patch(); print('numpy' in sys.modules, 'torch' in sys.modules)"
    assert run_python("-c", script).stdout == "False False\n"


@pytest.mark.parametrize("function", [patch, unpatch, lambda *names: patched(*names).__enter__()])
def test_an_unknown_framework_changes_nothing(function):
    for wrong in (["numpy"], {"numpy": True}, np.ones(2), None):
        for function in (patch, unpatch, patched):
            with pytest.raises(OperandError, match="no framework to patch is called"):
                function(wrong)
    with pytest.raises(OperandError, match="'jax'"):
        function("numpy", "jax")
    assert not runs_ours(np)


@pytest.mark.skipif(find_spec("cupy") is not None, reason="CuPy is installed")
def test_a_missing_framework_changes_nothing():
    with pytest.raises(ImportError):
        patch("numpy", "cupy")
    assert not runs_ours(np)


def test_leaves_what_somebody_put_over_it():
    try:
        with patched("numpy"):
            np.einsum = len
        assert np.einsum is len
    finally:
        np.einsum = NUMPY_NATIVE


def test_goes_beneath_a_wrapper_that_tells_what_it_wraps(torch, monkeypatch):
    seen = []

    @functools.wraps(torch.einsum)
    def counted(*operands):
        seen.append(operands)
        return counted.__wrapped__(*operands)

    monkeypatch.setattr(torch, "einsum", counted)
    with patched("torch"):
        assert runs_ours(torch)
    assert len(seen) == 1


def test_many_threads_patch_and_call():
    a, b = random_arrays((4, 3), (3, 5))
    expected = a @ b
    wrong = []

    def work(turn):
        for _ in range(200):
            if turn % 3 == 0:
                with patched("numpy"):
                    result = np.einsum("ij,jk->ik", a, b)
            else:
                (patch if turn % 3 == 1 else unpatch)("numpy")
                result = np.einsum("ij,jk->ik", a, b)
            if not np.allclose(result, expected):
                wrong.append(result)

    threads = [threading.Thread(target=work, args=(turn,)) for turn in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    unpatch()
    assert not wrong
    assert not runs_ours(np)


# ---- what it does


def test_computes_without_the_native_function(calls):
    native_calls = calls(np)
    a, b, c = random_arrays((4, 3), (3, 5), (5, 2))
    with patched("numpy"):
        for _ in range(2):
            np.testing.assert_allclose(np.einsum("ij,jk->ki", a, b), (a @ b).T)
            np.testing.assert_allclose(np.einsum("ij,jk,kl", a, b, c), a @ b @ c)
            np.testing.assert_allclose(np.einsum(a, [0, 1], b, [1, 2], [2, 0]), (a @ b).T)
            np.testing.assert_allclose(np.einsum(a, [..., 1], b, [1, 30]), a @ b)
    assert not native_calls


def test_reads_letters_only():
    with patched("numpy"):
        # As words it would be a product of two matrices.
        with pytest.raises(ValueError, match="too many subscripts"):
            np.einsum("row mid, mid column -> row column", *random_arrays((2, 3), (3, 4)))
        assert np.einsum("a b, b c -> a c", *random_arrays((2, 3), (3, 4))).shape == (2, 4)


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "float32", "casting": "same_kind"},
        {"dtype": "complex128"},
        {"order": "F"},
        {"order": "C"},
        {"order": "A"},
        {"optimize": False},
        {"optimize": True},
        {"optimize": "optimal"},
        {"optimize": ("greedy", 100)},
        {"optimize": ["einsum_path", (1, 2), (0, 1)]},
        {"dtype": np.dtype("float32"), "casting": "unsafe", "order": "F", "optimize": "greedy"},
    ],
    ids=str,
)
def test_options_of_numpy(options):
    operands = random_arrays((4, 3), (3, 5), (5, 4))
    expected = np.einsum("ij,jk,kl->il", *operands, **options)
    with patched("numpy"):
        for _ in range(2):
            result = np.einsum("ij,jk,kl->il", *operands, **options)
            np.testing.assert_allclose(result, expected, rtol=1e-5)
            assert result.dtype == expected.dtype
            if "order" in options:
                assert result.flags.f_contiguous == expected.flags.f_contiguous


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_results_have_views_where_native_ones_have(torch, dtype):
    strided = (((2, 3, 2), (0, 2, 1)), ((2, 2, 3, 3), (18, 9, 3, 1)))
    a, b = (torch.arange(200.0).to(getattr(torch, dtype)).as_strided(*each) for each in strided)
    expected = torch.einsum("fca,fdbc->dcfa", a, b).view(-1)
    with patched("torch"):
        found = torch.einsum("fca,fdbc->dcfa", a, b).view(-1)
    torch.testing.assert_close(found, expected)


def test_a_view_stays_a_writable_view():
    a = np.zeros((3, 3))
    with patched("numpy"):
        np.einsum("ii->i", a)[:] = 1
        assert np.shares_memory(np.einsum("ij->ji", a), a)
    np.testing.assert_array_equal(a, np.eye(3))


def test_gluon_block(mnp):
    gluon, autograd = import_module("mxnet.gluon"), import_module("mxnet.autograd")

    class Product(gluon.HybridBlock):
        def forward(self, a, b):
            return mnp.einsum("bij,bjk->bki", a, b)

    a, b = mnp.random.uniform(size=(2, 4, 3)), mnp.random.uniform(size=(2, 3, 5))
    expected = (a.asnumpy() @ b.asnumpy()).swapaxes(1, 2)
    a.attach_grad()
    with patched("mxnet"):
        block = Product()
        np.testing.assert_allclose(block(a, b).asnumpy(), expected, rtol=1e-5)
        block.hybridize()
        for _ in range(2):
            with autograd.record():
                result = block(a, b)
            result.backward()
            np.testing.assert_allclose(result.asnumpy(), expected, rtol=1e-5)
        assert block(mnp.ones((7, 4, 3)), mnp.ones((7, 3, 5))).shape == (7, 5, 4)
    # A graph that was made while patched goes on working.
    np.testing.assert_allclose(block(a, b).asnumpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(a.grad.asnumpy(), np.repeat(b.asnumpy().sum(2)[:, None], 4, 1), rtol=1e-5)


@pytest.mark.skipif(find_spec("mxnet") is None, reason="needs MXNet")
def test_makes_mxnet_importable():
    script = "import einops_fast; einops_fast.patch('mxnet'); import mxnet; print(mxnet.np.einsum.__name__)"
    assert run_python("-c", script).stdout == "einsum\n"
