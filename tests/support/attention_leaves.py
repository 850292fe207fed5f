"""Tensors that want gradients, and how they are compared."""

import torch


def leaves(*shapes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def check_same(ours, theirs, operands):
    """The results are close, and the gradients of their sums."""
    torch.testing.assert_close(ours, theirs)
    gradients = (torch.autograd.grad(each.sum(), operands) for each in (ours, theirs))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def jagged(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
