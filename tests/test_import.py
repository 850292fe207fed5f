"""Importing the library, or using it on NumPy arrays, loads no other framework."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOT_OURS_TO_LOAD = {"cupy", "jax", "matplotlib", "mxnet", "rich", "tensorflow", "torch", "triton"}
USE = """
import numpy as np
a = np.ones((2, 3))
assert (einops_fast.fast_einsum("ij,kj->ik", a, a) == 3).all()
"""


@pytest.mark.parametrize("use", ["", USE], ids=["import", "numpy"])
def test_loads_no_framework(use):
    script = f"import sys, einops_fast\n{use}\nprint(*({NOT_OURS_TO_LOAD} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == []
