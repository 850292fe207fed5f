"""Whether a framework's einsum is ours, and where it is found."""

import numpy as np

from einops_fast import profile

MODULES = {
    "numpy": ["numpy", "numpy.core.einsumfunc" if np.__version__ < "2" else "numpy._core.einsumfunc"],
    "torch": ["torch", "torch.functional"],
    "mxnet": ["mxnet.numpy", "mxnet.numpy.multiarray"],
}
NUMPY_NATIVE = np.einsum


def runs_ours(module, einsum=None):
    """Whether the einsum of a module, or this one, goes through a plan of ours."""
    with profile() as seen:
        (einsum or module.einsum)("ij,jk->ik", module.ones((2, 3)), module.ones((3, 4)))
    return bool(seen.rows)


def random_arrays(*shapes):
    generator = np.random.default_rng(0)
    return [generator.normal(size=shape) for shape in shapes]
