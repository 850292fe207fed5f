"""Nested tensors of torch with the jagged layout."""

import torch


def jagged(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
