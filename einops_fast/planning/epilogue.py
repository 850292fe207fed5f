"""What follows a matrix product within its kernel. Kernels get it as a constant, which Triton takes of a dataclass."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Epilogue:
    """What is done to a matrix product before it is written: ``activation(product + bias)``."""

    activation: str  # one of `einops_fast.ops.checks.ACTIVATIONS`
    # strides of the bias along the axes of the result, in elements, 0 where it lacks one; `None` for no bias
    bias: tuple[int, ...] | None = None
    keeps: bool = False  # `product + bias` is written, too, as a second result
