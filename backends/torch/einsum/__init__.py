"""Einsum on torch's tensors: gradients, the operator for compilers, blocks, copies."""
