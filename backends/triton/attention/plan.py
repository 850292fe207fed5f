"""Which kernels compute a call of attention: the one way from a problem to launches."""

from __future__ import annotations

from einops_fast.backends.triton.attention.around.copyable import on_copies
from einops_fast.backends.triton.attention.decode import plan as decode
from einops_fast.backends.triton.attention.decode.plan import suits_decode
from einops_fast.backends.triton.attention.general import plan as general
from einops_fast.backends.triton.attention.general.tilings import backward_tilings, forward_tiling
from einops_fast.backends.triton.attention.hopper import plan as hopper
from einops_fast.backends.triton.attention.hopper.plan import suits_hopper, suits_hopper_backward
from einops_fast.backends.triton.attention.launches import FORWARD, Launch, Plan
from einops_fast.backends.triton.attention.problem import Problem
from einops_fast.backends.triton.attention.short import plan as short
from einops_fast.backends.triton.attention.short.plan import suits_short, suits_short_backward


def forward_plan(problem: Problem) -> Plan:
    """Return the plan of a forward call, which is given the arrays of :data:`FORWARD`."""
    if suits_short(problem):
        return Plan(FORWARD, short.forward(problem))
    problem, copies = on_copies(problem, ("q", "k", "v", "out"), suits_hopper)
    launches: tuple[Launch, ...] = general.forward(problem, forward_tiling(problem))
    if suits_hopper(problem):
        launches = hopper.forward(problem, launches)
        if copies:
            launches = copies.around(launches, ("out",))
    elif suits_decode(problem):
        launches = decode.forward(problem, launches)
    return Plan(FORWARD, launches)


def backward_plan(problem: Problem) -> Plan:
    """Return the plan of a backward call, which is given the arrays of :data:`BACKWARD`."""
    if suits_short_backward(problem):
        return short.backward(problem)
    names = ("q", "k", "v", "d_out", "dq", "dk", "dv")
    problem, copies = on_copies(problem, names, suits_hopper_backward)
    tilings = backward_tilings(problem)
    if suits_hopper_backward(problem):
        return hopper.backward(problem, tilings, copies)
    return general.backward(problem, tilings)
