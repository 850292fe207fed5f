"""Kernels around the attention kernels: copies of operands, bounds of masks, sums of parts."""
