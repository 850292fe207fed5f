"""Write the two updates of AlphaFold's pair representation: triangle multiplication and triangle attention.

Both work along either axis of a square of features, which an einsum or a pattern just names: no transpose for the
columns. Prints, for rows and columns, the differences of results and of gradients from plain torch.
"""

import sys

import torch

from einops_fast import attention, fast_einsum

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TRIANGLES = {"outgoing": "n i k c, n j k c -> n i j c", "incoming": "n k i c, n k j c -> n i j c"}
ATTENTION = {
    "rows": ("n r i h d, n r j h d, n r j h e -> n r i h e", ("n h i j", "n r j")),
    "columns": ("n i r h d, n j r h d, n j r h e -> n i r h e", ("n h i j", "n j r")),
}


def multiply(direction: str, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the sum over the third corner of each triangle."""
    return fast_einsum(TRIANGLES[direction], left, right)


def plain_multiply(direction: str, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the same by a batch of matrix products."""
    left, right = left.movedim(-1, 1), right.movedim(-1, 1)
    return (left @ right.mT if direction == "outgoing" else left.mT @ right).movedim(1, -1)


def attend(along: str, qkv: torch.Tensor, bias: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return attention along one axis, with a bias that all rows share."""
    pattern, (biased, masked) = ATTENTION[along]
    return attention(pattern, *qkv, bias=(biased, bias), mask=(masked, mask))


def plain_attend(along: str, qkv: torch.Tensor, bias: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the same by matrix products: columns are transposed first, and the result is transposed back."""
    if along == "columns":
        qkv, mask = qkv.transpose(2, 3), mask.mT
    q, k, v = qkv.transpose(-2, -3)
    scores = q @ k.mT * q.shape[-1] ** -0.5 + bias[:, None]
    result = scores.masked_fill(~mask[:, :, None, None], float("-inf")).softmax(-1) @ v
    return result.transpose(-2, -3) if along == "rows" else result.transpose(-2, -3).transpose(1, 2)


def compare(name, fast, plain, *inputs) -> None:
    """Print how far two functions of the same inputs, and their gradients, are apart."""
    results = []
    for function in (fast, plain):
        result = function(*inputs)
        wanted = [each for each in inputs if each.requires_grad]
        results.append([result, *torch.autograd.grad(result.square().sum(), wanted)])
    differences = [(a - b).abs().max() / b.abs().max() for a, b in zip(*results, strict=True)]
    print(f"{name}: difference {differences[0]:.1e}, of gradients {max(differences[1:]):.1e}")


def main(tiny: bool) -> None:
    torch.manual_seed(0)
    length, heads, channels = (8, 2, 8) if tiny else (64, 4, 32)
    left, right = (torch.randn(1, length, length, channels, device=DEVICE, requires_grad=True) for _ in range(2))
    for direction in TRIANGLES:
        fast, plain = (lambda *both, f=f, d=direction: f(d, *both) for f in (multiply, plain_multiply))
        compare(f"multiplication, {direction}", fast, plain, left, right)
    qkv = torch.randn(3, 1, length, length, heads, channels, device=DEVICE, requires_grad=True)
    bias = torch.randn(1, heads, length, length, device=DEVICE, requires_grad=True)
    mask = torch.rand(1, length, length, device=DEVICE) < 0.8
    mask[:, torch.arange(length), torch.arange(length)] = True
    for along in ATTENTION:
        fast, plain = (lambda *all_, f=f, a=along: f(a, *all_) for f in (attend, plain_attend))
        compare(f"attention along {along}", fast, plain, qkv, bias, mask)


if __name__ == "__main__":
    main("--tiny" in sys.argv)
