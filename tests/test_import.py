"""Importing the library, or using it on NumPy arrays, loads no other framework."""

import pytest
from python_process import run_python

NOT_OURS_TO_LOAD = {"cupy", "jax", "matplotlib", "mxnet", "rich", "tensorflow", "torch", "triton"}
USE = """
import numpy as np
a = np.ones((2, 3))
assert (einops_fast.fast_einsum("ij,kj->ik", a, a) == 3).all()
"""
EXPLAIN = "from einops_fast.cli import main; main(['explain', 'ij,jk', '2,3', '3,4'])"


@pytest.mark.parametrize("use", ["", USE, EXPLAIN], ids=["import", "numpy", "explain"])
def test_loads_no_framework(use):
    script = f"import sys, einops_fast\n{use}\nprint(*({NOT_OURS_TO_LOAD} & sys.modules.keys()))"
    assert run_python("-c", script).stdout.splitlines()[-1] == ""


def test_calls_of_torch_load_nothing_of_numpy():
    pytest.importorskip("torch")
    script = """
import sys, torch
from einops_fast import attention, explain, fast_einsum
a, b = torch.ones(3, 4), torch.ones(4, 5)
for operands in ((a, b), (a, torch.nn.Parameter(b)), ([a, b],)):
    fast_einsum('ij,jk->ik', *operands)
fast_einsum('ij,jk->ik', a, b, out=torch.empty(3, 5))
fast_einsum(a, [0, 1], b, [1, 2])
fast_einsum('(i x) j, j k -> i x k', a, b, x=3)
explain('ij,jk->ik', a, b)
attention('i d, j d, j e -> i e', a, a, a)
print(*{'einops_fast.backends.numpy', 'einops_fast.backends.ndarray'} & sys.modules.keys())
"""
    assert run_python("-c", script).stdout.split() == []


def test_modules_are_attributes_that_load_when_asked_for():
    script = (
        "import sys, einops_fast\n"
        "early = ('ops', 'nn', 'metrics', 'compiler', 'waiting')\n"
        "early = [name for name in early if f'einops_fast.{name}' in sys.modules]\n"
        "print(early, einops_fast.ops.softmax.__name__, einops_fast.metrics.read.__name__)\n"
        "print(set(dir(einops_fast)) == {*einops_fast.__all__, 'metrics', 'nn', 'ops'}, hasattr(einops_fast, 'numpy'))"
    )
    assert run_python("-c", script).stdout.splitlines() == ["[] softmax read", "True False"]
