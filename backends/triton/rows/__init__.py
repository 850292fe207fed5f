"""Operators along rows by kernels of our own: how rows are cut, and which way is the fastest."""
