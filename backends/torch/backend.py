"""torch: BLAS, oneDNN or cuBLAS through ``bmm``; views, autograd and transforms through torch's own calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from functools import cache, partial
from math import prod
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.multiprocessing.reductions import StorageWeakRef

from einops_fast.attention import torch_state
from einops_fast.backends.base import Backend, Likeness, Run, one_device
from einops_fast.backends.host import free_memory
from einops_fast.backends.torch.autocast import (
    any_autocast,
    autocast_dtype,
    outside_autocast,
    pair_by_pair,
    torch_path,
    whole_dtype,
)
from einops_fast.backends.torch.ceilings import aimed_at, target_of
from einops_fast.backends.torch.ceilings import kernel_dtypes as kernel_dtypes
from einops_fast.backends.torch.destinations import TorchDestinations
from einops_fast.backends.torch.einsum.native import any_einsum, einsum_alone, einsum_of, gives_c_order, pair_einsum
from einops_fast.backends.torch.errors import check_casting, copied_to, naming_operands, refuse_layouts
from einops_fast.backends.torch.steps import stacked_product
from einops_fast.backends.torch.types import (
    HALVES,
    PLAIN,
    any_nested,
    called_alike,
    can_cast,
    guards_of,
    has_one_way,
    is_backward,
    is_followed,
    is_jit_tracing,
    is_seen,
    is_strict,
    is_traced,
    recorder,
    saving_hooks,
    shapes_of,
    share_storage,
    signs_of,
    unrecorded,
)
from einops_fast.dtypes import dtype_name
from einops_fast.errors import OperandError
from einops_fast.observing.observers import observed
from einops_fast.patching.function_body import private_copy
from einops_fast.planning.cost import is_integer
from einops_fast.planning.notation import Subscripts
from einops_fast.planning.plan import Plan
from einops_fast.planning.steps import Fused, Gemm, Native
from einops_fast.planning.target import Numerics, Operand, Target
from einops_fast.runtime.autocast import autocasts
from einops_fast.runtime.precision import allowed, settled
from einops_fast.runtime.tracing import ask_torch
from einops_fast.runtime.tuning import current_mode, is_reproducible, unchecked_mode

# From torch 2.9 on, reading the older setting is an error once the newer one was used.
_matmul_precision: Callable[[str, str], str] | None = getattr(torch._C, "_get_fp32_precision_getter", None)
# What torch says of products of float32, in its own words.
_fp32_setting: Callable[[], Any] = (
    (lambda: torch.backends.cuda.matmul.allow_tf32)
    if _matmul_precision is None
    else partial(_matmul_precision, "cuda", "matmul")
)
_AUTOCAST = "autocast chooses the dtype"
_BY_PAIRS = "autocast chooses the dtype of each pair"
_TWO_DTYPES = "operands of two dtypes"
_NONE: frozenset[str] = frozenset()
_AT_ONCE = 1 << 19
"""Elements of all operands up to which torch.einsum takes a call whose shape is new."""


_FEW = 1 << 16
"""Elements of all operands multiplied with each other, up to which a contraction is left to the library."""


class TorchBackend(TorchDestinations):
    """torch tensors of any device; subclasses and sparse ones go to torch.einsum as they are."""

    name = "torch"
    module = "torch"
    is_backward = staticmethod(is_backward)
    shapes = staticmethod(shapes_of)
    check_casting = staticmethod(check_casting)
    float32_precision = staticmethod(lambda: settled(fp32_precision()))

    def __init__(self) -> None:
        self.einsum = private_copy(torch.einsum)  # native, also while that is patched
        ask_torch(torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling)
        torch_state.ask_torch(is_strict, is_followed, saving_hooks, PLAIN)

    def owns(self, array_type: type) -> bool:
        return issubclass(array_type, torch.Tensor)

    def of_type(self, array_type: type) -> Backend:
        tensors = sys.modules.get("torch.distributed.tensor")
        if tensors is None or not issubclass(array_type, tensors.DTensor):
            return self
        return sharded_backend()

    def signature(self, operands: Sequence[Any]) -> Hashable:
        key: Hashable
        try:
            if len(operands) == 2:
                # The usual number, spelled out, which is faster than the general form.
                a, b = operands
                key = (
                    a.shape, a.stride(), a.dtype, a.device, a.requires_grad, type(a),
                    b.shape, b.stride(), b.dtype, b.device, b.requires_grad, type(b),
                )  # fmt: skip
            else:
                key = tuple([(a.shape, a.stride(), a.dtype, a.device, a.requires_grad, type(a)) for a in operands])
        except RuntimeError:
            refuse_layouts(operands)
            raise
        # After the operands' attributes: what torch's functions raise about an operand that is no tensor prints it.
        first = operands[0]
        autocast = any_autocast() and autocast_dtype(first.device.type)
        if first.is_cuda:
            # What our own kernels depend on beyond the operands.
            kernels = current_mode(), settled(fp32_precision()), tuple(signs_of(operands))
            return key, torch.is_grad_enabled(), is_seen(operands), autocast, kernels
        return key, torch.is_grad_enabled(), is_seen(operands), autocast

    def likeness(self, operands: Sequence[Any], kernels: bool = False) -> Likeness | None:
        if is_seen(operands) or any(type(each) not in PLAIN for each in operands) or any_nested(operands):
            return None
        # They look at types, sizes, strides, dtypes, devices, whether there may be gradients, and at what decides who
        # gets to see a call: autocast, transforms, negated views. The rest is state that isn't in there.
        check = guards_of(operands)
        if check is None:
            return None
        kind = operands[0].device.type
        to = autocast_dtype(kind) if any_autocast() else None
        if to is not None:
            guarded, dtype_now = check, torch.get_autocast_dtype
            check = lambda *others: guarded(*others) and dtype_now(kind) is to  # noqa: E731
        if not operands[0].is_cuda:
            return called_alike(check, operands)
        grad_mode = torch.is_grad_enabled()
        mode, precision = current_mode(), (_fp32_setting(), allowed())
        # The library asks for the precision itself. Of three operands and more it isn't always what runs.
        by_library = (
            len(operands) < 3 and not kernels and mode != "always" and prod([each.numel() for each in operands]) <= _FEW
        )
        exactly = not by_library and any(each.dtype == torch.float32 for each in operands)
        return lambda others: (
            not any_nested(others)
            and check(*others)
            and torch.is_grad_enabled() is grad_mode
            and forward_ad._current_level < 0
            and recorder() is None
            and unchecked_mode() == mode
            and (not exactly or (_fp32_setting(), allowed()) == precision)
        )

    def inspect(self, array: Any) -> Operand:
        shape = tuple(array.shape)
        strides = tuple(array.stride()) if array.layout is torch.strided else (1,) * len(shape)
        return Operand(shape, strides, dtype_name(array.dtype))

    def target(self, operands: Sequence[Any]) -> Target:
        device = one_device([operand.device for operand in operands])
        # A transform sees every call that torch gets, and knows no derivative of writing into a view of the result,
        # of leaving out an axis, or of a kernel. Gradients alone are taken of a whole pair; three operands become
        # pairs when they are there, and of one operand, torch records each call.
        transformed = is_seen(operands)
        gradients = not transformed and torch.is_grad_enabled() and any(each.requires_grad for each in operands)
        whole = not transformed and (not gradients or len(operands) == 2)
        kernels = kernel_dtypes(device) if whole and not any(neg for neg, _ in signs_of(operands)) else _NONE
        half, threads = operands[0].dtype in HALVES, torch.get_num_threads()
        return target_of(
            device, half, threads, transformed, gradients, whole, kernels, is_reproducible(), aimed_at(device)
        )

    def numerics(self, operands: Sequence[Any], dtype: Any, casting: str) -> Numerics:
        dtypes = [operand.dtype for operand in operands]
        wanted = dtypes[0] if dtype is None else dtype
        if dtype is not None:
            self.check_casting(operands, dtype, casting)
        for at, operand in enumerate(operands):
            if type(operand) not in PLAIN or operand.layout is not torch.strided:
                reason = f"operand {at} is a {type(operand).__name__} of layout {operand.layout}"
                name = dtype_name(operand.dtype if dtype is None else dtype)
                return Numerics(name, name, reason, whole=dtype is None, widens=dtype is not None)
        name = dtype_name(wanted)
        if dtype is None and any(own != wanted for own in dtypes):
            return Numerics(name, name, _TWO_DTYPES, whole=True)
        if dtype is None and autocasts(operands[0]):
            return Numerics(name, name, _AUTOCAST, whole=True)
        return self._numerics(name, operands, whole=dtype is None)

    def numerics_of(self, subscripts: Subscripts, operands: Sequence[Any], dtype: Any, casting: str) -> Numerics:
        numerics = self.numerics(operands, dtype, casting)
        kind = operands[0].device.type
        if numerics.native not in (_AUTOCAST, _TWO_DTYPES) or autocast_dtype(kind) is None:
            return numerics
        shapes = tuple([tuple(operand.shape) for operand in operands])
        ones = [[size == 1 for size in shape] for shape in shapes]
        dtypes = [dtype_name(operand.dtype) for operand in operands]
        path = torch_path(subscripts.equation, shapes)
        found = whole_dtype(subscripts.inputs, subscripts.output, ones, dtypes, path, kind)
        if found is not None:
            return self._numerics(found, operands, whole=True)
        # Axes of size 1 that stand for longer ones are torch's, as is what it has an error for.
        by_pairs = len(operands) > 2 and numerics.native == _AUTOCAST and not any(map(any, ones))
        return numerics.replace(native=_BY_PAIRS) if by_pairs else numerics

    def _numerics(self, name: str, operands: Sequence[Any], *, whole: bool) -> Numerics:
        """Computing in the dtype of this name, to which all operands are brought."""
        by_kernels = len(operands) > 1 and is_integer(name) and name in kernel_dtypes(operands[0].device)
        return _numerics_in(name, by_kernels, whole)

    def native(self, equation: str, operands: Sequence[Any], **options: Any) -> Any:
        return self.einsum(equation, *operands, **options)

    def gives_c_order(self, equation: str, operands: Sequence[Any]) -> bool:
        return gives_c_order(equation, operands)

    def native_step(self, step: Native) -> Run:
        native = super().native_step(step)
        if step.reason != _BY_PAIRS:
            return native
        # Imported here because fast_einsum is made of backends.
        from einops_fast.einsum import fast_einsum

        return lambda *operands: pair_by_pair(fast_einsum, step.equation, operands)

    def example(self, shape: tuple[int, ...], dtype: str, strides: tuple[int, ...] | None = None) -> Any:
        made = torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
        return made if strides is None else made.new_empty_strided(shape, strides)

    def at_once(self, operands: Sequence[Any], full: int = 0) -> Callable[..., Any] | None:
        if is_jit_tracing():  # the sizes are traced tensors, which no decision may follow from
            return None
        if len(operands) != 2:
            elements = sum([each.numel() for each in operands])
            plain = len(operands) > 2 and all(type(each) is torch.Tensor for each in operands)
            einsum = any_einsum if plain else self.native
        else:  # in less time than any number of them
            one, other = operands
            elements = one.numel() + other.numel()
            einsum = pair_einsum if type(one) is type(other) is torch.Tensor else self.native
        begins = elements <= _AT_ONCE if operands[0].is_cpu else _begins_with_einsum(operands)
        if not begins or is_reproducible() or has_one_way():
            return None
        return None if full and any(each.layout is not torch.strided for each in operands) else einsum

    def is_recording(self, arrays: Sequence[Any]) -> bool:
        return is_jit_tracing() or any(
            type(size) is torch.SymInt for each in arrays if not each.is_nested for size in each.shape
        )

    def may_keep(self, arrays: Sequence[Any]) -> bool:
        plain = all(type(each) in PLAIN and not (each.requires_grad or each.is_inference()) for each in arrays)
        # What is computed in inference mode can't be saved for a backward pass.
        return plain and not (is_traced() or torch.is_inference_mode_enabled())

    def versions(self, arrays: Sequence[Any]) -> Hashable:
        # Modules that are moved or converted get other storages in the same tensors, whose versions stay. While there
        # is a reference to one, none is made at its address.
        reference: Any = StorageWeakRef
        return tuple([(each._version, reference(each.untyped_storage())) for each in arrays])

    def room(self, operands: Sequence[Any]) -> int | None:
        device, item = operands[0].device, int(operands[0].element_size())
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
            return int(free + cached) // item
        return free_memory() // item if device.type == "cpu" else None

    def check_out(self, result: Any, out: Any, casting: str) -> None:
        # While torch.jit.trace records, sizes are tensors.
        with nullcontext() if torch._C._get_tracing_state() is None else unrecorded():
            super().check_out(result, out, casting)
        if casting != "unsafe" and not can_cast(result.dtype, out.dtype):
            raise OperandError(f"casting={casting!r} doesn't convert {result.dtype} to out's {out.dtype}")
        if out.device != result.device:
            raise OperandError(f"out is on {out.device}, the operands are on {result.device}")

    def finish(self, result: Any, out: Any, order: str, casting: str) -> Any:
        if out is not None:
            self.check_out(result, out, casting)
            return copied_to(out, result.clone() if share_storage(result, out) else result)
        if order == "F":
            reverse = tuple(range(result.dim()))[::-1]
            return self.contiguous(result.permute(reverse)).permute(reverse)
        return self.contiguous(result) if order in ("C", "A") else result

    def differentiable(self, plan: Plan, run: Run) -> Run:
        # Imported here because it goes through fast_einsum, which is made of backends.
        from einops_fast.backends.torch.einsum.autograd import differentiable

        return differentiable(plan, run, self)

    def enclosed(self, plan: Plan, run: Run) -> Run:
        run = naming_operands(plan, _in_fewer_calls(plan, run))
        # The plan itself converts what autocast would, and has products that it mustn't.
        kind = torch.device(plan.target.device).type
        if plan.numerics.whole or autocast_dtype(kind) is None:
            return run
        return partial(outside_autocast, kind, run)

    def mark(self, array: Any) -> Any:
        if not array.is_cuda:
            return super().mark(array)
        # A tensor that stands for another may be on no device at all.
        if type(array) not in PLAIN or torch.cuda.is_current_stream_capturing():
            return None
        new_event: Any = torch.cuda.Event
        event = new_event(enable_timing=True)
        event.record(torch.cuda.current_stream(array.device))
        return event

    def between(self, start: Any, end: Any) -> float:
        if isinstance(start, float):
            return super().between(start, end)
        end.synchronize()
        return float(start.elapsed_time(end) * 1e-3)

    def fused(self, step: Fused) -> Run:
        # Imported here because only calls on a GPU need these.
        from einops_fast.backends.torch.memory import TorchMemory
        from einops_fast.backends.triton.contraction.choice import Choice, chosen_run

        return chosen_run(Choice(step, self.library(step), TorchMemory(), self.float32_precision(), current_mode()))


@cache
def sharded_backend() -> Backend:
    """Return the backend of DTensors; it is imported where there are any."""
    from einops_fast.backends.torch.sharding.backend import ShardedBackend

    return ShardedBackend()


def _begins_with_einsum(operands: Sequence[Any]) -> bool:
    """Whether a plan of operands on a GPU would begin with torch.einsum, too."""
    first = operands[0]
    return (
        first.is_cuda
        and len(operands) == 2
        and (first.is_floating_point() or first.is_complex())
        and unchecked_mode() == "auto"
        and allowed() is None
        and not any_autocast()
    )


def _in_fewer_calls(plan: Plan, run: Run) -> Run:
    """The plan, compiled as ``run``, or what takes the host less time: where nobody follows each call."""
    if not plan.target.drops_expanded or observed():
        return run
    if len(plan.steps) != 1:
        return einsum_alone(plan) or run
    step = plan.steps[0]
    if isinstance(step, Fused):
        if hasattr(run, "at_once") and len(plan.operands) == 2:
            run.at_once = einsum_of(plan, step.any_order)
        return run
    if plan.target.gradients:
        return run
    if not isinstance(step, Gemm) or len(step.batch) < 2 or step.buffer is not None or 1 in (step.m, step.n):
        return run
    plain = all(how.shape is None and not how.moves for how in (step.left, step.right))
    if not plain or step.shape != (*step.batch, step.m, step.n):
        return run
    product = stacked_product(step, [plan.operands[at] for at in step.reads])
    return product if step.reads == (0, 1) else lambda a, b: product(b, a)


@cache
def _numerics_in(name: str, by_kernels: bool, whole: bool) -> Numerics:
    """Computing in the dtype of this name; ``by_kernels``: there are kernels for its integers."""
    if by_kernels:
        # On a GPU torch has no products of them either. What it does with one operand has another dtype.
        return Numerics(name, name, gemm=False)
    wanted = getattr(torch, name)
    if not (wanted.is_floating_point or wanted.is_complex) or wanted.itemsize < 2 or wanted is torch.complex32:
        # Its sums of integers are int64.
        return Numerics(name, name, f"{name} has no GEMM in BLAS", whole=whole, widens=not whole)
    return Numerics(name, name)


def fp32_precision() -> str:
    """How cuBLAS may multiply float32 numbers, by torch's settings: ``'ieee'`` or ``'tf32'``."""
    return "tf32" if _fp32_setting() in (True, "tf32") else "ieee"
