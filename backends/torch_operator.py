"""Functions that our kernels compute on torch's tensors, as torch has to know them: called, recorded, traced.

Called eagerly they run at once, or as one node that autograd records. Traced by torch.compile, and on subclasses of
tensors, they are operators of torch with known results, which takes a little longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from einops_fast.attention.torch_state import autocasts
from einops_fast.backends.torch_memory import TorchMemory
from einops_fast.backends.triton import usable
from einops_fast.tuning import autotune, current_mode

__all__ = [
    "MEMORY",
    "PLAIN",
    "Operator",
    "aligned_items",
    "autocasted",
    "by_kernel",
    "dtype_name",
    "on_gpu",
    "result_dtype",
    "transformed",
]

MEMORY = TorchMemory()

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Types of tensors that nobody has overridden anything of."""

_USABLE = usable()

_CAST = (torch.float16, torch.bfloat16, torch.float32)
"""What autocast casts."""

_DTYPES = (*_CAST, torch.float64)

_NAMES = {each: str(each).removeprefix("torch.") for each in vars(torch).values() if isinstance(each, torch.dtype)}

_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)


class Operator:
    """A function of tensors and numbers.

    Args:
        schema: name, arguments and results, as torch writes them.
        compute: the function, without regard to gradients.
        shapes: the same for tensors without values: the results' shapes, strides and dtypes.
        setup: keeps in a context what the gradients need, from the arguments and the results.
        backward: gradients of all arguments, from the context and those of the results.
    """

    def __init__(
        self,
        schema: str,
        compute: Callable[..., Any],
        shapes: Callable[..., Any],
        setup: Callable[[Any, tuple[Any, ...], Any], None] | None = None,
        backward: Callable[..., Any] | None = None,
    ) -> None:
        name = schema[: schema.index("(")]
        qualified = f"einops_fast::{name}"
        torch.library.define(qualified, schema[len(name) :], tags=_TAGS)
        torch.library.impl(qualified, "CompositeExplicitAutograd")(compute)
        torch.library.register_fake(qualified)(shapes)
        self.compute = compute
        self.traced: Any = getattr(torch.ops.einops_fast, name).default
        self.recorded: Callable[..., Any] | None = None
        if setup is not None and backward is not None:
            torch.library.register_autograd(qualified, backward, setup_context=setup)
            self.recorded = _recorded(name, compute, setup, backward)

    def __call__(self, *arguments: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.traced(*arguments)
        wanted = False
        for each in arguments:  # in one go: every call comes through here
            kind = type(each)
            if kind is torch.Tensor or kind is torch.nn.Parameter:
                wanted = wanted or each.requires_grad
            elif isinstance(each, torch.Tensor):
                return self.traced(*arguments)
        if wanted and self.recorded is not None and torch.is_grad_enabled():
            return self.recorded(*arguments)
        return self.compute(*arguments)


def _recorded(name: str, compute: Any, setup: Any, backward: Any) -> Callable[..., Any]:
    """What autograd sees. Without ``setup_context``, which takes longer."""

    def forward(ctx: Any, *arguments: Any) -> Any:
        found = compute(*arguments)
        setup(ctx, arguments, found)
        ctx.mode = current_mode()
        return found

    def backward_in_mode(ctx: Any, *gradients: Any) -> Any:
        # Autograd has threads of its own, which blocks of the caller's don't reach.
        if ctx.mode == current_mode():
            return backward(ctx, *gradients)
        with autotune(ctx.mode):
            return backward(ctx, *gradients)

    functions = {"forward": staticmethod(forward), "backward": staticmethod(backward_in_mode)}
    made: Any = type(name, (torch.autograd.Function,), functions)
    apply: Callable[..., Any] = made.apply
    return apply


def on_gpu(tensor: Any) -> bool:
    """Whether a tensor is where our kernels run."""
    return bool(tensor.is_cuda) and torch.version.hip is None


def transformed() -> bool:
    """Whether a derivative may be asked for that only torch's own functions have: forward mode, ``torch.func``."""
    return bool(torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0)


def by_kernel(tensors: Sequence[Any]) -> bool:
    """Whether these tensors are for our kernels."""
    first = tensors[0]
    return (
        _USABLE
        and all(on_gpu(each) for each in tensors)
        and first.dtype in _DTYPES
        and first.numel() > 0
        and not first.is_nested
        and not transformed()
    )


def aligned_items(*tensors: Any) -> tuple[int, ...]:
    """Bytes of an element of each tensor; nothing if one of them doesn't begin at a multiple of 16 bytes."""
    bits = 0
    for each in tensors:
        bits |= each.data_ptr()
    return () if bits % 16 else tuple([each.itemsize for each in tensors])


def dtype_name(dtype: torch.dtype) -> str:
    """As NumPy spells it."""
    return _NAMES[dtype]


def autocasted(operands: Sequence[Any]) -> Sequence[Any]:
    """Operands of a product, some of them perhaps ``None``, in the dtype that autocast wants."""
    first = operands[0]
    if not autocasts(first):
        return operands
    dtype = torch.get_autocast_dtype(first.device.type)
    return [each if each is None or each.dtype not in _CAST else each.to(dtype) for each in operands]


def result_dtype(tensor: Any) -> torch.dtype:
    """Of a result for which autocast wants float32, as torch's own functions do."""
    if autocasts(tensor) and tensor.dtype in (torch.float16, torch.bfloat16):
        return torch.float32
    found: torch.dtype = tensor.dtype
    return found
