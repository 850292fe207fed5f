"""Kernels of our own for GPUs, in Triton: they take every operand with the strides it has.

The way of a :class:`~einops_fast.planning.steps.Fused` step: :mod:`contraction.problems` sorts its loops by role, the
``tilings`` of each kind of kernel in :mod:`contraction` say which tiles are worth trying, :mod:`launching.launch`
compiles and runs a kernel with such tiles, and :mod:`contraction.choice` picks one of them, or the library's calls, by
prediction or by measurement. The frameworks come in through :mod:`einops_fast.backends.memory`. The kernels of fused
layers are launched by the ``plan`` of each folder in :mod:`rows`, and :mod:`rows.contest` picks their tiles. Only calls
on a GPU import any of it; :mod:`einops_fast.backends.triton_support` says whether they can.
"""
