"""Which kernels compute a call of attention: the one way from a spec and the layouts of arrays to launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.triton.attention.around.copyable import on_copies
from einops_fast.backends.triton.attention.decode import plan as decode
from einops_fast.backends.triton.attention.decode.plan import suits_decode
from einops_fast.backends.triton.attention.general import plan as general
from einops_fast.backends.triton.attention.general.tilings import backward_tilings, forward_tiling
from einops_fast.backends.triton.attention.hopper import plan as hopper
from einops_fast.backends.triton.attention.hopper.plan import suits_hopper, suits_hopper_backward
from einops_fast.backends.triton.attention.launches import FORWARD, Launch, Plan
from einops_fast.backends.triton.attention.problem import Layout, Problem
from einops_fast.backends.triton.attention.short import plan as short
from einops_fast.backends.triton.attention.short.plan import suits_short, suits_short_backward

__all__ = ["backward_plan", "forward_plan"]


def forward_plan(
    spec: AttentionSpec,
    layouts: Mapping[str, Layout],
    dtypes: Mapping[str, str],
    sort_out: Callable[[Mapping[str, Layout]], Problem],
    processors: tuple[tuple[int, int], int],
) -> Plan:
    """Return the plan of a forward call, which is given the arrays of :data:`FORWARD`.

    Args:
        spec: what is computed.
        layouts: of the arrays, as :class:`Strides` calls them.
        dtypes: of the arrays ``bias``, ``cached`` and ``table``; empty for those that there aren't.
        sort_out: makes a problem of layouts.
        processors: compute capability of the device, and how many processors it has.
    """
    capability, units = processors
    rows = layouts["q"][0][-2]

    def on_hopper(found: Problem) -> bool:
        return not suits_short(spec, found, units) and suits_hopper(spec, found, capability, dtypes["bias"])

    found, copies = on_copies(spec, layouts, ("q", "k", "v", "out"), dtypes["bias"], sort_out, on_hopper)
    launches: tuple[Launch, ...]
    if suits_short(spec, found, units):
        return Plan(FORWARD, short.forward(spec, found, units))
    launches = general.forward(spec, found, rows, forward_tiling(spec, found, capability, units))
    if on_hopper(found):
        launches = hopper.forward(spec, found, units, launches, dtypes["bias"])
        if copies:
            launches = copies.around(launches, ("out",))
    elif suits_decode(spec, found, capability):
        launches = decode.forward(spec, found, units, launches, dtypes)
    return Plan(FORWARD, launches)


def backward_plan(
    spec: AttentionSpec,
    layouts: Mapping[str, Layout],
    bias_dtype: str,
    sort_out: Callable[[Mapping[str, Layout]], Problem],
    processors: tuple[tuple[int, int], int],
) -> Plan:
    """Return the plan of a backward call, which is given the arrays of :data:`BACKWARD`; see :func:`forward_plan`.

    Args:
        spec: what was computed.
        layouts: of the arrays, and of the gradients that are wanted.
        bias_dtype: of the bias, if there is one.
        sort_out: makes a problem of layouts.
        processors: compute capability of the device, and how many processors it has.
    """
    capability, units = processors
    rows = layouts["q"][0][-2]

    def on_hopper(found: Problem) -> bool:
        suits = suits_hopper_backward(spec, found, capability, bias_dtype)
        return suits and not suits_short_backward(spec, found, units)

    names = ("q", "k", "v", "d_out", "dq", "dk", "dv")
    found, copies = on_copies(spec, layouts, names, bias_dtype, sort_out, on_hopper)
    if suits_short_backward(spec, found, units):
        return short.backward(spec, found, units)
    tilings = backward_tilings(spec, found, capability)
    if on_hopper(found):
        return hopper.backward(spec, found, rows, tilings, units, bias_dtype, copies)
    return general.backward(spec, found, rows, tilings)
