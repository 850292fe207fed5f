"""Hopper's attention kernels, forward and backward."""
