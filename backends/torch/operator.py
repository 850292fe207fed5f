"""Functions that our kernels compute on torch's tensors, as torch has to know them: called, recorded, traced.

Called eagerly they run at once, or as one node that autograd records. Traced by torch.compile, and on subclasses of
tensors, they are operators of torch with known results, which takes a little longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import torch

from einops_fast import dtypes
from einops_fast.backends.absent_gpu import aimed
from einops_fast.backends.torch import ahead
from einops_fast.backends.torch.flops import formulas
from einops_fast.backends.torch.function import recorded
from einops_fast.backends.torch.memory import TorchMemory
from einops_fast.backends.torch.types import HALVES, PLAIN, is_batched, is_followed, is_jit_tracing
from einops_fast.backends.triton_support import why_unusable
from einops_fast.planning.layout import VECTOR
from einops_fast.runtime.autocast import autocasts
from einops_fast.runtime.tuning import autotune, unchecked_mode

MEMORY = TorchMemory()

Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Shape, strides and dtype of a tensor; tuples, and nothing derived from them."""

_NVIDIA = torch.version.hip is None

_CAST = (*HALVES, torch.float32)
"""What autocast casts."""

_DTYPES = (*_CAST, torch.float64)

_NAMES = {each: dtypes.dtype_name(each) for each in vars(torch).values() if isinstance(each, torch.dtype)}

_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)

_Library: Any = torch.library.Library
_library = _Library("einops_fast", "FRAGMENT")  # while it lives, what it registers stays

_BELOW_AUTOGRAD: Any = torch._C._after_ADInplaceOrView_keyset

_IN_MEMORY = {torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA}
"""Dispatch keys of plain tensors that no mode and no transform of torch looks at."""


_unregistered: list[Callable[[], None]] = []
"""Functions that register an operator with torch. That takes milliseconds, and calls that aren't traced do without."""

_registering = Lock()


def registered() -> bool:
    """Have torch know all operators that were made so far; return ``True``."""
    if _unregistered:
        with _registering:
            while _unregistered:
                _unregistered.pop()()
    return True


# torch.compile calls it while tracing.
registered._dynamo_marked_constant = True  # type: ignore[attr-defined]


class Operator:
    """A function of tensors and numbers.

    Args:
        schema: name, arguments and results, as torch writes them; the tensors come first.
        compute: the function, without regard to gradients. A result that isn't made is ``None``.
        shapes: the same for tensors without values: the results' shapes, strides and dtypes.
        setup: keeps in a context what the gradients need, from the arguments and the results.
        backward: gradients of all tensors, from the context and those of the results.
        seen: how many results the caller gets where autograd records a call; the others are for the gradients only.
        unrecorded: the function for callers that want no gradients, if it is another one.
        flops: of the products in it, from the arguments; none if it has no products.
    """

    def __init__(
        self,
        schema: str,
        compute: Callable[..., Any],
        shapes: Callable[..., Any],
        setup: Callable[[Any, tuple[Any, ...], Any], None] | None = None,
        backward: Callable[..., Any] | None = None,
        seen: int | None = None,
        unrecorded: Callable[..., Any] | None = None,
        flops: Callable[..., int] | None = None,
    ) -> None:
        name = schema[: schema.index("(")]
        if flops is not None:
            formulas[name] = flops
        self.compute = compute
        self.unrecorded = unrecorded
        self.recorded: Callable[..., Any] | None = None
        given = schema[: schema.index("->")]
        self._tensors = given.count("Tensor")
        self._traced: Any = None
        differentiable = setup is not None and backward is not None
        if differentiable:
            self.recorded = recorded(_function(name, compute, setup, backward, seen))

        def register() -> None:
            qualified = f"einops_fast::{name}"
            torch.library.define(qualified, schema[len(name) :], tags=_TAGS)
            run = _whole(self._once_compiled)
            torch.library.impl(qualified, "CompositeExplicitAutograd")(run)
            torch.library.register_fake(qualified)(_whole(self._compiled_ahead(shapes)))
            self._traced = getattr(torch.ops.einops_fast, name).default
            if differentiable:
                watched = self._watched(run, _function(name, self._traced, setup, backward, None))
                _library.impl(name, watched, "Autograd", with_keyset=True)

        _unregistered.append(register)

    @property
    def traced(self) -> Any:
        """The operator of torch."""
        registered()
        return self._traced

    def __call__(self, *arguments: Any) -> Any:
        if torch.compiler.is_compiling() or is_jit_tracing():
            return self.traced(*arguments)
        tensors = arguments[: self._tensors]
        wanted = False
        for each in tensors:  # in one go: every call comes through here
            kind = type(each)
            if kind is torch.Tensor or kind is torch.nn.Parameter:
                wanted = wanted or each.requires_grad
                if each.is_neg() or is_batched(each):  # what is in memory is its negative, or a part of it
                    return self.traced(*arguments)
            elif each is not None:
                return self.traced(*arguments)
        if wanted and self.recorded is not None and torch.is_grad_enabled():
            return self.recorded(*tensors, arguments[self._tensors :])
        return (self.unrecorded or self.compute)(*arguments)

    def _once_compiled(self, *arguments: Any) -> Any:
        """Compute a call that was traced before, whose kernels may still be compiled elsewhere."""
        if ahead.pending:
            ahead.wait()
        return self.compute(*arguments)

    def _compiled_ahead(self, shapes: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function of tensors without values, by which torch.compile tells what will be called."""

        def run(*arguments: Any) -> Any:
            ahead.compile_ahead(self.compute, arguments[: self._tensors], arguments[self._tensors :])
            return shapes(*arguments)

        return run

    def _watched(self, compute: Callable[..., Any], function: Any) -> Callable[..., Any]:
        """Return the kernel of the dispatch key Autograd, which torch calls whether or not gradients are recorded.

        In compiled code none are. There it is one turn through torch's dispatcher, where what
        ``torch.library.register_autograd`` registers takes two, each longer for the host than a kernel's launch.
        """

        def run(keys: Any, *arguments: Any) -> Any:
            if torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments):
                return function.apply(*arguments[: self._tensors], arguments[self._tensors :])
            keys &= _BELOW_AUTOGRAD
            with torch._C._AutoDispatchBelowAutograd():
                if keys.highestPriorityTypeId() in _IN_MEMORY:
                    return compute(*arguments)
                return self.traced.redispatch(keys, *arguments)

        return run


def _whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with an empty tensor for each result that isn't made, as operators of torch have to give one."""

    def run(first: Any, *others: Any) -> Any:
        found = function(first, *others)
        if not isinstance(found, tuple) or not [each for each in found if each is None]:
            return found
        nothing = (0,), (1,), first.dtype
        instead = new_tensors(first, [nothing if each is None else None for each in found])
        return tuple([made if each is None else each for each, made in zip(found, instead, strict=True)])

    return run


def _function(name: str, compute: Any, setup: Any, backward: Any, seen: int | None) -> type[torch.autograd.Function]:
    """What autograd sees: as few arguments and results as there can be, each of which takes it time.

    Without ``setup_context``, which takes longer. Choices are made backward in the mode that was forward.
    """

    def forward(ctx: Any, *arguments: Any) -> Any:
        *tensors, numbers = arguments
        inputs = (*tensors, *numbers)
        found = compute(*inputs)
        setup(ctx, inputs, found)
        ctx.mode = unchecked_mode()
        return found if seen is None else found[:seen]

    def backward_in_mode(ctx: Any, *gradients: Any) -> Any:
        # Autograd has threads of its own, which blocks of the caller's don't reach.
        if ctx.mode == unchecked_mode():
            return (*backward(ctx, *gradients), None)
        with autotune(ctx.mode):
            return (*backward(ctx, *gradients), None)

    functions = {"forward": staticmethod(forward), "backward": staticmethod(backward_in_mode)}
    return type(name, (torch.autograd.Function,), functions)


def on_gpu(tensor: Any) -> bool:
    """Whether a tensor is where our kernels run."""
    return (bool(tensor.is_cuda) and _NVIDIA) or (tensor.is_meta and aimed() is not None)


def by_kernel(tensors: Sequence[Any]) -> bool:
    """Whether these tensors are for our kernels."""
    for each in tensors:  # in a loop: every call comes through here
        if not on_gpu(each):
            return False
    first = tensors[0]
    return (
        first.dtype in _DTYPES
        and first.numel() > 0
        and not first.is_nested
        and not is_followed()
        and why_unusable() is None
    )


def is_aligned(*tensors: Any) -> bool:
    """Whether all begin at multiples of 16 bytes, as new memory does."""
    bits = 0
    for each in tensors:
        bits |= each.data_ptr()
    return bits % VECTOR == 0


def new_tensors(like: Any, layouts: Sequence[Layout | None]) -> tuple[Any, ...]:
    """Return tensors of these layouts on the device of ``like``, with nothing in them; ``None`` where there is none."""
    if type(like) in PLAIN and MEMORY.device(like) == MEMORY.current_device():
        here = MEMORY.here(like)
        return tuple([None if each is None else here(*each) for each in layouts])
    new = like.new_empty_strided
    return tuple([None if each is None else new(each[0], each[1], dtype=each[2]) for each in layouts])


def dtype_name(dtype: torch.dtype) -> str:
    """As :func:`einops_fast.dtypes.dtype_name`, in less time."""
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
    found: torch.dtype = tensor.dtype
    return torch.float32 if found in HALVES and autocasts(tensor) else found
