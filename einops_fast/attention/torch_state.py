"""What torch's global state means for an attention: derivatives, autocast, random seeds.

Nothing here is called before there are tensors, so to import torch in a function costs nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from einops_fast.errors import OperandError, ShapeError
from einops_fast.runtime.autocast import autocasts
from einops_fast.runtime.tuning import is_reproducible

#: Whether torch is set to warn or raise where something needn't give the same bits on every run, or is in a block as of
#: :func:`mesh_of_block`; no, before there are tensors. Look it up in this module each time.
is_strict: Callable[[], bool] = bool


#: Whether torch has to get each call, as :func:`einops_fast.backends.torch.types.is_followed` says.
is_followed: Callable[[], bool] = bool


#: Hooks that get what is saved for gradients, as a checkpoint's; nothing if there are none.
saving_hooks: Callable[[bool], Any] = lambda ignores_tracing: None  # noqa: E731


#: Types of tensors that nobody has overridden anything of; none before there are tensors.
plain_types: tuple[type, ...] = ()


def ask_torch(
    is_strict_now: Callable[[], bool],
    is_followed_now: Callable[[], bool],
    saving_hooks_now: Callable[[bool], Any],
    plain_types_now: tuple[type, ...],
) -> None:
    """Hand over what torch answers."""
    global is_strict, is_followed, saving_hooks, plain_types
    is_strict, is_followed, saving_hooks, plain_types = (
        is_strict_now, is_followed_now, saving_hooks_now, plain_types_now
    )  # fmt: skip


_block = threading.local()


def mesh_of_block() -> Any:
    """Return the mesh of torch's ``context_parallel`` block, from what that put in place of torch's attention.

    ``None`` outside of it, and while ranks compute their parts.
    """
    import torch

    replaced: Any = torch.nn.functional.scaled_dot_product_attention
    if getattr(replaced, "__name__", "") != "inner_fn" or getattr(_block, "left", False):
        return None
    cells = dict(zip(replaced.__code__.co_freevars, replaced.__closure__ or (), strict=True))
    return cells["device_mesh"].cell_contents if "device_mesh" in cells else None


@contextmanager
def outside_of_block() -> Iterator[None]:
    """Let calls of this thread be those of plain tensors, also in a block."""
    before, _block.left = getattr(_block, "left", False), True
    try:
        yield
    finally:
        _block.left = before


def refuse_layouts(arrays: Mapping[str, Any]) -> None:
    """Raise OperandError if a tensor has no strides."""
    import torch

    for name, array in arrays.items():
        layout = getattr(array, "layout", torch.strided)
        if isinstance(layout, torch.layout) and layout is not torch.strided and not getattr(array, "is_nested", False):
            raise OperandError(f"{name} is a tensor of layout {layout}; attention takes dense ones: .to_dense()")


def refuse_without_sizes(array: Any, name: str) -> None:
    """Raise OperandError for a nested tensor that isn't jagged: none of its axes has a size."""
    if getattr(array, "is_nested", False) is True and str(array.layout) == "torch.strided":
        raise OperandError(f"{name} is a nested tensor whose axes have no sizes: make it with layout=torch.jagged")


def derivatives(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a spec that say which derivatives may be asked for."""
    import torch

    wanted = torch.is_grad_enabled()
    if wanted and "alibi_slopes" in arrays and arrays["alibi_slopes"].requires_grad:
        raise OperandError("alibi_slopes have no gradient here: detach them, or add a bias that is made of them")
    # What torch.jit.trace records is called with gradients or without, whatever the call has that it records.
    recorded = not torch.compiler.is_compiling() and torch._C._is_tracing()
    gradients = wanted and any(
        arrays[name].requires_grad for name in ("q", "k", "v", "bias", "sinks") if name in arrays
    )
    return {
        "gradients": recorded or gradients,
        "bias_gradient": "bias" in arrays and (recorded or (wanted and arrays["bias"].requires_grad)),
        "transforms": is_followed(),
    }


def autocast(arrays: dict[str, Any]) -> None:
    """Convert q, k and v as autocast does for torch's scaled_dot_product_attention: all but float64."""
    if not autocasts(arrays["q"]):
        return
    import torch

    device = arrays["q"].device.type
    dtype = torch.get_autocast_dtype(device)
    for name in ("q", "k", "v"):
        array = arrays[name]
        if array.is_floating_point() and array.dtype != torch.float64:
            arrays[name] = array.to(dtype)


def hides_values(array: Any) -> bool:
    """Return whether no decision may follow from an array's values now, even by a caller that waits for a device."""
    if not hasattr(array, "is_meta"):
        return False
    import torch

    from einops_fast.backends.torch.types import is_traced

    return bool(array.is_meta or is_traced() or (array.is_cuda and torch.cuda.is_current_stream_capturing()))


def deterministic() -> bool:
    """Return whether calls have to give the same bits on every run, by our setting or torch's to raise otherwise."""
    import torch

    return is_reproducible() or bool(
        torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()
    )


# torch.compile can't follow the second question. It compiles again when the answers change.
deterministic._dynamo_marked_constant = True  # type: ignore[attr-defined]


def seed_for(array: Any) -> Any:
    """Return a seed for the dropout of one call, on the device of ``array``."""
    import torch

    if torch.compiler.is_compiling():
        return torch.randint(0, 1 << 62, (1,), dtype=torch.int64, device=array.device)
    return torch.empty((1,), dtype=torch.int64, device=array.device).random_()  # takes the host half as long


def not_ours(*arguments: Any) -> str | None:
    """Return why a call of torch's attention is left to torch; ``None`` for plain CUDA tensors that only we look at."""
    import torch

    first = arguments[0]  # asked before all others, which a call on a CPU would wait for
    if isinstance(first, torch.Tensor) and not on_cuda(first):
        return "its tensors aren't on a CUDA device"
    if torch.compiler.is_compiling() or torch._C._is_tracing():
        return "torch traces it"
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    if not all(
        type(tensor) in (torch.Tensor, torch.nn.Parameter) and (tensor is first or on_cuda(tensor))
        for tensor in tensors
    ) or any(tensor.is_nested for tensor in tensors):  # fmt: skip
        return "an operand is no plain CUDA tensor"
    if is_followed() or torch._C._len_torch_dispatch_stack():
        return "a transform or a mode of torch wants to see it"
    cuda: Any = torch.backends.cuda
    everything = (
        cuda.flash_sdp_enabled() and cuda.mem_efficient_sdp_enabled() and cuda.cudnn_sdp_enabled()
        and cuda.math_sdp_enabled()
    )  # fmt: skip
    return None if everything else "sdpa_kernel, or a setting of torch, restricts the implementations"


def causal_of(bias: Any, query: Any, key: Any) -> str:
    """Return the causality that torch's ``CausalBias`` stands for, as :func:`einops_fast.attention` takes it."""
    made_for = bias.seq_len_q, bias.seq_len_kv
    lengths = tuple(getattr(array, "shape", (0, 0))[-2] for array in (query, key))
    if made_for != lengths:
        raise ShapeError(
            f"attn_mask is a CausalBias of {made_for[0]} queries and {made_for[1]} keys, but query has {lengths[0]} "
            f"and key has {lengths[1]}"
        )
    return "top_left" if bias.variant.name == "UPPER_LEFT" else "bottom_right"


def plain_mask(mask: Any, like: Any) -> Any:
    """Return a mask beside ``like``: for torch's ``CausalBias``, whose elements are none, booleans."""
    if type(mask).__name__ != "CausalBias":
        return mask
    import torch

    shift = 0 if mask.variant.name == "UPPER_LEFT" else mask.seq_len_kv - mask.seq_len_q
    seen = torch.ones((mask.seq_len_q, mask.seq_len_kv), dtype=torch.bool, device=getattr(like, "device", None))
    return seen.tril(shift)


def on_cuda(tensor: Any) -> bool:
    """Return whether a tensor is where there is more than one implementation."""
    return bool(tensor.is_cuda)
