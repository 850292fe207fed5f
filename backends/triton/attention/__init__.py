"""Attention in Triton: every operand with the strides it has, no score matrix in memory.

The way of one call: :mod:`problem` makes strides and constants of a spec and its arrays, :mod:`plan` chooses kernels,
whose folders' ``plan`` files return :mod:`launches`, which are then queued in every call. The kernels in
:mod:`general` compute everything; those in :mod:`short`, :mod:`hopper` and :mod:`decode` are for some calls and GPUs,
as the ``plan`` of each folder says; :mod:`around` has what goes before and after.
"""
