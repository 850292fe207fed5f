"""Contract arrays of Dask, which may be larger than memory: pair by pair in the order of a plan, each block by block.

Needs dask (``pip install '.[dask]'``). Prints the blocks of the lazy result, how many pairs of blocks were contracted,
a profile of them, and the difference from NumPy's result of the whole arrays.
"""

import sys

try:
    import dask.array as da
except ImportError:
    sys.exit("skipped: dask isn't installed")
import numpy as np

import einops_fast

EQUATION = "i j, j k, k l -> i l"


def main(tiny: bool) -> None:
    size, blocks = (40, 2) if tiny else (1200, 3)
    arrays = np.random.default_rng(0).standard_normal((3, size, size))
    lazy = [da.from_array(array, size // blocks) for array in arrays]
    product = einops_fast.fast_einsum(EQUATION, *lazy)
    print(f"{type(product).__name__} of {product.npartitions} blocks, nothing computed yet")
    with einops_fast.profile() as profile:
        result = product.compute(scheduler="threads")
    print(f"einops_fast contracted {sum(row.calls for row in profile.rows)} pairs of blocks")
    print(profile)
    expected = np.linalg.multi_dot(arrays)
    print(f"max difference {abs(result - expected).max() / abs(expected).max():.1e}")


if __name__ == "__main__":
    main("--tiny" in sys.argv)
