"""Attention in Triton: every operand with the strides it has, no score matrix in memory.

The way of one call: :mod:`problem` makes strides and constants of a spec and its arrays, :mod:`tilings` says which
tiles are worth trying, :mod:`forward_plan` and :mod:`backward_plan` put the launches of a call together, each of them a
:mod:`~einops_fast.backends.triton.kernel_call`. The kernels are :mod:`forward`, :mod:`decode` (the sum of parts),
:mod:`backward`, :mod:`keys_gradient`, :mod:`queries_gradient` and :mod:`bias_gradient`; they share :mod:`loading`,
:mod:`score` and :mod:`blocks`. What begins with ``hopper`` is for GPUs of that kind: :mod:`hopper_plan` and
:mod:`hopper_decode_plan` say for which calls.
"""
