"""Kernels of our own for GPUs, in Triton: they take every operand with the strides it has.

The way of a :class:`~einops_fast.steps.Fused` step: :mod:`problems` sorts its loops by role,
:mod:`contraction_tilings` and :mod:`reduction_tilings` say which tiles are worth trying, :mod:`launch` compiles
and runs one of the kernels (:mod:`contraction`, :mod:`reduction`) with such tiles, and :mod:`choice` picks one of
them, or the library's calls, by prediction or by measurement. The frameworks come in through :mod:`memory`.
"""
