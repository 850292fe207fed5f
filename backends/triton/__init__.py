"""Kernels of our own for GPUs, in Triton: they take every operand with the strides it has.

The way of a :class:`~einops_fast.steps.Fused` step: :mod:`problems` sorts its loops by role,
:mod:`contraction_tilings`, :mod:`chain_tilings` and :mod:`reduction_tilings` say which tiles are worth trying,
:mod:`launch` compiles and runs one of the kernels (:mod:`contraction`, :mod:`chain`, :mod:`reduction`) with such
tiles, and :mod:`choice` picks one of them, or the library's calls, by prediction or by measurement. The frameworks
come in through :mod:`einops_fast.backends.memory`. The kernels of fused layers are launched by their ``*_plan.py``, and
:mod:`contest` picks their tiles. Only calls on a GPU import any of it; :mod:`einops_fast.backends.triton_support` says
whether they can.
"""
