"""Attention on torch's tensors: our kernels as functions and operators of torch."""
