"""Run a MXNet Gluon block with MXNet's einsum, then with ours beneath it: ``patch('mxnet')``, and no other change.

Prints the time of a forward and backward pass before and after the patch, hybridized too, and the differences.
"""

import sys
import time

from einops_fast import patch, unpatch

patch("mxnet")  # Before the import: MXNet by itself doesn't import with current NumPy.

import mxnet  # noqa: E402
from mxnet import np, npx  # noqa: E402
from mxnet.gluon import Parameter, nn  # noqa: E402

npx.set_np()


class Attention(nn.HybridBlock):
    """Self-attention written with MXNet's own functions."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.qkv = Parameter("qkv", shape=(3, width, heads, width // heads))
        self.out = Parameter("out", shape=(heads, width // heads, width))
        self.scale = (width // heads) ** -0.5

    def forward(self, x: np.ndarray) -> np.ndarray:
        q, k, v = (np.einsum("bic,chd->bihd", x, self.qkv.data()[place]) for place in range(3))
        weights = npx.softmax(np.einsum("bihd,bjhd->bhij", q, k) * self.scale)
        return np.einsum("bihd,hdc->bic", np.einsum("bhij,bjhd->bihd", weights, v), self.out.data())


def passes(block: Attention, x: np.ndarray, repeats: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the result, the gradient of a weight, and the seconds of the fastest pass."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        with mxnet.autograd.record():
            result = block(x)
            loss = (result**2).sum()
        loss.backward()
        gradient = block.qkv.grad()
        mxnet.npx.waitall()
        seconds.append(time.perf_counter() - start)
    return result, gradient.copy(), min(seconds)


def main(tiny: bool) -> None:
    batch, length, width, heads = (2, 16, 32, 4) if tiny else (4, 64, 128, 8)
    mxnet.np.random.seed(0)
    block = Attention(width, heads)
    block.initialize(mxnet.init.Normal(width**-0.5))
    x = np.random.normal(size=(batch, length, width))
    unpatch("mxnet")
    result, gradient, before = passes(block, x, 2)
    print(f"MXNet's einsum: {before * 1e3:.1f} ms")
    patch("mxnet")
    for name in ("patched", "patched and hybridized"):
        fast, fast_gradient, after = passes(block, x, 5)
        apart = [float(abs(a - b).max() / abs(b).max()) for a, b in ((fast, result), (fast_gradient, gradient))]
        print(f"{name}: {after * 1e3:.1f} ms, difference {apart[0]:.1e}, of gradients {apart[1]:.1e}")
        block.hybridize()


if __name__ == "__main__":
    main("--tiny" in sys.argv)
